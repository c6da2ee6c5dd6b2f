/*
 * everdram_fabric.h: a client of everdram over a fabric, for C.
 *
 * Link with libeverdram_fabric_c (shared or static). libfabric.so.1 is loaded when the first client connects.
 *
 * Durability: a call that puts or deletes returns EVERDRAM_OK once the change is durable, and a submitted one
 * is durable once everdram_poll tells EVERDRAM_OK of its ticket. What durable means (power loss, a killed
 * server) is up to the server: everdram_hello tells it in a sentence. No call is ever repeated by itself.
 *
 * Waiting: a call without a time limit waits until its server answers or the connection to it ends.
 *
 * Many servers: each key is at one of the servers of the list, the same one for all clients with the same
 * servers, whatever the order of their addresses. Nothing is replicated. A server that is gone takes its keys
 * with it until it is back; calls for other servers go on.
 *
 * Memory: the caller owns all memory that it passes, and may change or free it as soon as a call has returned,
 * after everdram_submit_put, too: values are copied. The library owns its clients and what they hold, and
 * returns no pointers. A pair of a pointer and a length may be NULL and 0. Nothing is written behind `room`.
 *
 * Threads: a client is for one thread at a time. A call that meets another call of the same client returns
 * EVERDRAM_IN_USE and does nothing. Different clients are independent; make one for each thread. A client does
 * not outlive fork(): connect in the child.
 *
 * Errors: every function that returns int32_t returns EVERDRAM_OK, EVERDRAM_ABSENT, or an error below 0, of
 * which everdram_error has the text. Unless a function says otherwise, it has written to none of its outputs
 * after an error, and a NULL output that it needs is EVERDRAM_ARGUMENT before anything was sent.
 */
#ifndef EVERDRAM_FABRIC_H
#define EVERDRAM_FABRIC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface; everdram_version() is that of the library. They must be the same. */
#define EVERDRAM_VERSION 1

/* It is done, and durable if it is a change. */
#define EVERDRAM_OK 0
/* There is no such key. Of a removal: nothing was removed. */
#define EVERDRAM_ABSENT 1
/* A pointer is NULL, a length or a number is not possible, a text is not UTF-8. Nothing was done. */
#define EVERDRAM_ARGUMENT (-1)
/* An address does not parse, or what stands behind its `#` is no pool. */
#define EVERDRAM_ADDRESS (-2)
/* There is no libfabric on this machine, or it is too old. */
#define EVERDRAM_LIBRARY (-3)
/* Nobody accepts connections there. Nothing was sent. */
#define EVERDRAM_NO_DOOR (-4)
/* Wrong password. */
#define EVERDRAM_DENIED (-5)
/* The key has no bytes, or more than EVERDRAM_KEY_BYTES_MAX. Nothing was sent. */
#define EVERDRAM_KEY_LENGTH (-6)
/* The value has more than EVERDRAM_VALUE_BYTES_MAX bytes, or than its way takes. Nothing was sent. */
#define EVERDRAM_VALUE_LENGTH (-7)
/* The connection ended before the reply: a change has happened or not. Read to know. */
#define EVERDRAM_UNKNOWN (-8)
/* The server of this key is gone, and it is too early to try again. Nothing was sent. */
#define EVERDRAM_GONE (-9)
/* The store has no room. */
#define EVERDRAM_FULL (-10)
/* The store is reading its log; try again. */
#define EVERDRAM_LOADING (-11)
/* The server refuses the request. */
#define EVERDRAM_REFUSED (-12)
/* The store has failed or is damaged, or what was written did not arrive as it was sent. */
#define EVERDRAM_FAILED (-13)
/* The server does not offer this way. Nothing was sent. */
#define EVERDRAM_NOT_OFFERED (-14)
/* There is not enough room for the bytes. The function says how many there are. */
#define EVERDRAM_ROOM (-15)
/* There is no such client: it was closed, or it never was. */
#define EVERDRAM_CLOSED (-16)
/* Another thread is in a call of this client. Nothing was done. */
#define EVERDRAM_IN_USE (-17)
/* Two addresses lead to the same pool, or to a pool and its copy. */
#define EVERDRAM_SAME_POOL (-18)
/* Another pool answers at the server's address. Nothing was sent. */
#define EVERDRAM_OTHER_POOL (-19)
/* There is no value under this ticket. */
#define EVERDRAM_NO_VALUE (-20)
/* The fabric fails, or the connection is closed. A change has happened or not; the next call may connect again. */
#define EVERDRAM_LINK (-21)
/* A bug of everdram. A change that was under way has happened or not. Close the client. */
#define EVERDRAM_BUG (-22)
/* The client, or all clients together, have all the memory of the server that they may have. Nothing was done;
   ask again later. */
#define EVERDRAM_BUSY (-23)

/* Limits, in bytes; longer keys and values go through the Redis door. */
#define EVERDRAM_KEY_BYTES_MAX 1024
#define EVERDRAM_VALUE_BYTES_MAX 1048576

/* How a value travels: with its request if it is short, else as SERVER_ASSISTED. */
#define EVERDRAM_WAY_AUTO 0
/* With its request, up to 16 KiB. */
#define EVERDRAM_WAY_INLINE 1
/* Written by the client into memory of the server, which makes it durable (RDMP-SA). */
#define EVERDRAM_WAY_SERVER_ASSISTED 2
/* Made durable by the client, if the server has a landing area (RDMP-CC-ADP). */
#define EVERDRAM_WAY_CLIENT_CENTRIC 3
/* The same, and the server is asked to look (RDMP-CC-SA). */
#define EVERDRAM_WAY_CLIENT_CENTRIC_ASKED 4
/* The same, asked by the write itself (RDMP-CC-Imm). */
#define EVERDRAM_WAY_CLIENT_CENTRIC_IMMEDIATE 5

/* Names a client. 0 names none. No number is used twice, so a closed client is recognised. */
typedef uint64_t everdram_client;

/* Names a submitted call of a client. */
typedef uint64_t everdram_ticket;

/* A submitted call that has ended. */
typedef struct everdram_done {
    everdram_ticket ticket;
    /* EVERDRAM_OK, EVERDRAM_ABSENT, or an error. */
    int32_t code;
    /* Of a put: how its value travelled. */
    int32_t way;
    /* Of a get: bytes of the value, which everdram_take copies. Of an error: bytes of its text, which it does, too. */
    uint64_t value_bytes;
    /* Of a get: when the value expires, in Unix milliseconds; 0 = never. */
    uint64_t expires_at_ms;
} everdram_done;

/* A server. */
typedef struct everdram_server {
    /* Its address with a zero behind it, cut if it is longer. */
    char address[96];
    /* The uuid of its pool, which is what it is known by. */
    uint8_t pool[16];
    /* How many of the 16384 slots of keys it has. */
    uint32_t slots;
    /* 1 if it offers the client-centric ways, else 0. */
    uint32_t takes_client_centric;
} everdram_server;

/* The version of the library. Compare it with EVERDRAM_VERSION. */
uint32_t everdram_version(void);

/*
 * Connects. `addresses` are `count` texts such as "tcp://127.0.0.1:7700"; each is asked for its pool, and must be
 * there, unless "#" and the 32 digits of its pool stand behind its address. `password`: NULL if there is none.
 * `timeout_ms`: how long connecting to a server may take, now and later; 0 = 5000. Writes the client to `*client`;
 * close it with everdram_close.
 */
int32_t everdram_connect(const char *const *addresses, size_t count, const char *password, uint32_t timeout_ms,
                         everdram_client *client);

/*
 * Closes a client, and frees what it holds. What is under way happens or not. EVERDRAM_CLOSED: it was closed before.
 * A call of another thread goes on and ends as it would have; it frees the client then.
 */
int32_t everdram_close(everdram_client client);

/* The number of servers, to `*count`. Their places are 0 to `*count` - 1, in the order of their pools. */
int32_t everdram_servers(everdram_client client, size_t *count);

/* The place of the server that has a key, whether the key is there or not, to `*place`. Sends nothing. */
int32_t everdram_server_of(everdram_client client, const void *key, size_t key_bytes, size_t *place);

/*
 * What the server at a place is, to `*server`, and what its acknowledgements mean, to `text`: a sentence of
 * `*text_bytes` bytes, without a zero. EVERDRAM_ROOM: it has `*text_bytes` bytes, which are more than `room`;
 * `*server` is written then, and `text` is not. Connects to the server if need be.
 */
int32_t everdram_hello(everdram_client client, size_t place, everdram_server *server, char *text, size_t room,
                       size_t *text_bytes);

/*
 * Stores a value, durably when this returns EVERDRAM_OK. `expires_at_ms`: Unix milliseconds; 0 = never.
 * `way`: one of EVERDRAM_WAY_..., usually EVERDRAM_WAY_AUTO.
 */
int32_t everdram_put(everdram_client client, const void *key, size_t key_bytes, const void *value, size_t value_bytes,
                     uint64_t expires_at_ms, int32_t way);

/*
 * Copies the value of a key to `into`, and its length to `*value_bytes`. EVERDRAM_ROOM: it has `*value_bytes` bytes,
 * which are more than `room`, and nothing was copied; call again with more room (the value may be another one by
 * then). EVERDRAM_ABSENT: `*value_bytes` is 0.
 */
int32_t everdram_get(everdram_client client, const void *key, size_t key_bytes, void *into, size_t room,
                     size_t *value_bytes);

/* Removes a key, durably when this returns EVERDRAM_OK. EVERDRAM_ABSENT: there was none. */
int32_t everdram_delete(everdram_client client, const void *key, size_t key_bytes);

/*
 * Submits a put, a get or a removal, and writes its ticket to `*ticket`. It is sent, and not awaited: up to 16 calls
 * may be under way at each server, and a further one waits for a reply. Changes of one key keep their order; a get
 * shows a state from between its submission and its end. After an error nothing was submitted.
 */
int32_t everdram_submit_put(everdram_client client, const void *key, size_t key_bytes, const void *value,
                            size_t value_bytes, uint64_t expires_at_ms, int32_t way, everdram_ticket *ticket);
int32_t everdram_submit_get(everdram_client client, const void *key, size_t key_bytes, everdram_ticket *ticket);
int32_t everdram_submit_delete(everdram_client client, const void *key, size_t key_bytes, everdram_ticket *ticket);

/*
 * Writes calls that have ended to `into`, at most `room` of them (at least 1), and their number to `*count`. Waits
 * for one, at most `timeout_ms`, if calls are under way; if none are, `*count` is 0 at once. Each is told once. What the last poll told, everdram_take
 * has until the next one, which frees it: take values between two polls. Calls that end with an error do not make
 * this an error: see `code` of each.
 */
int32_t everdram_poll(everdram_client client, uint32_t timeout_ms, everdram_done *into, size_t room, size_t *count);

/*
 * Copies the value that a get of the last poll found, or the text of an error that it told, to `into`, and its length
 * to `*value_bytes`. It may be taken more than once. EVERDRAM_ROOM: it has `*value_bytes` bytes, which are more than
 * `room`, and nothing was copied. EVERDRAM_NO_VALUE: the last poll told no value of this ticket.
 */
int32_t everdram_take(everdram_client client, everdram_ticket ticket, void *into, size_t room, size_t *value_bytes);

/*
 * Copies the text of the last error that a function returned to this thread, with a zero behind it, to `into`, cut to
 * `room`; writes nothing if `room` is 0. Returns the bytes of the whole text, without the zero; 0 if there was no
 * error. Calls that succeed leave the text as it is.
 */
size_t everdram_error(char *into, size_t room);

#ifdef __cplusplus
}
#endif

#endif
