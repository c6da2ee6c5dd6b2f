/*
 * A client of everdram over a fabric, in C.
 *
 *   cargo build --release -p everdram-fabric-c
 *   cc -std=c11 -I crates/fabric-c/include -o hello crates/fabric-c/examples/hello.c \
 *      -L target/release -leverdram_fabric_c -Wl,-rpath,target/release
 *   ./hello tcp://127.0.0.1:7700 [tcp://127.0.0.1:7701 ...]
 *
 * The password of the servers, if they have one, is in EVERDRAM_PASSWORD.
 */
#include "everdram_fabric.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with the text of an error. */
static void must(int32_t code, const char *what)
{
    char text[256];
    if (code >= 0)
        return;
    everdram_error(text, sizeof text);
    fprintf(stderr, "%s: %s (%" PRId32 ")\n", what, text, code);
    exit(1);
}

/* Ends the program if something is not as it must be. */
static void check(int is_so, const char *what)
{
    if (is_so)
        return;
    fprintf(stderr, "not so: %s\n", what);
    exit(1);
}

static void hello(everdram_client client)
{
    size_t count = 0;
    must(everdram_servers(client, &count), "servers");
    for (size_t place = 0; place < count; place++) {
        everdram_server server;
        char text[512];
        size_t bytes = 0;
        must(everdram_hello(client, place, &server, text, sizeof text, &bytes), "hello");
        printf("%s has %" PRIu32 " slots. %.*s\n", server.address, server.slots, (int)bytes, text);
    }
}

/* A value of any length: ask for it with the room there is, and again with more if that is too little. */
static char *get(everdram_client client, const char *key, size_t *bytes)
{
    size_t room = 16;
    for (;;) {
        char *value = malloc(room);
        check(value != NULL, "there is memory");
        int32_t code = everdram_get(client, key, strlen(key), value, room, bytes);
        if (code == EVERDRAM_OK)
            return value;
        free(value);
        if (code == EVERDRAM_ABSENT)
            return NULL;
        if (code != EVERDRAM_ROOM)
            must(code, "get");
        room = *bytes;
    }
}

/* Many puts under way at once, then many gets, and all of their outcomes. */
static void pipeline(everdram_client client)
{
    enum { CALLS = 200 };
    everdram_ticket tickets[CALLS];
    everdram_done done[16];
    char key[32], value[64];
    size_t count, left, bytes;

    for (int call = 0; call < CALLS; call++) {
        int key_bytes = snprintf(key, sizeof key, "hello:%d", call);
        int value_bytes = snprintf(value, sizeof value, "value %d", call);
        must(everdram_submit_put(client, key, (size_t)key_bytes, value, (size_t)value_bytes, 0, EVERDRAM_WAY_AUTO,
                                 &tickets[call]),
             "submit_put");
    }
    for (left = CALLS; left > 0; left -= count) {
        must(everdram_poll(client, 10000, done, 16, &count), "poll");
        check(count > 0, "puts end");
        for (size_t place = 0; place < count; place++)
            check(done[place].code == EVERDRAM_OK, "a put is durable");
    }
    for (int call = 0; call < CALLS; call++) {
        int key_bytes = snprintf(key, sizeof key, "hello:%d", call);
        must(everdram_submit_get(client, key, (size_t)key_bytes, &tickets[call]), "submit_get");
    }
    for (left = CALLS; left > 0; left -= count) {
        must(everdram_poll(client, 10000, done, 16, &count), "poll");
        check(count > 0, "gets end");
        for (size_t place = 0; place < count; place++) {
            int call = 0;
            while (call < CALLS && tickets[call] != done[place].ticket)
                call++;
            check(call < CALLS && done[place].code == EVERDRAM_OK, "a get finds its value");
            char found[64];
            must(everdram_take(client, done[place].ticket, found, sizeof found, &bytes), "take");
            int value_bytes = snprintf(value, sizeof value, "value %d", call);
            check(bytes == (size_t)value_bytes && memcmp(found, value, bytes) == 0, "it is the value that was put");
        }
    }
}

int main(int count, char **arguments)
{
    everdram_client client;
    size_t bytes = 0;

    if (count < 2) {
        fprintf(stderr, "usage: %s ADDRESS...\n", arguments[0]);
        return 2;
    }
    check(everdram_version() == EVERDRAM_VERSION, "the library is the one of this header");
    must(everdram_connect((const char *const *)&arguments[1], (size_t)count - 1, getenv("EVERDRAM_PASSWORD"), 0, &client),
         "connect");
    hello(client);

    size_t long_bytes = 100000;
    char *long_value = malloc(long_bytes);
    check(long_value != NULL, "there is memory");
    for (size_t at = 0; at < long_bytes; at++)
        long_value[at] = (char)(at % 251);
    must(everdram_put(client, "long", 4, long_value, long_bytes, 0, EVERDRAM_WAY_AUTO), "put");
    char *found = get(client, "long", &bytes);
    check(found != NULL && bytes == long_bytes && memcmp(found, long_value, bytes) == 0, "the long value is there");
    free(found);
    free(long_value);

    must(everdram_put(client, "empty", 5, NULL, 0, 0, EVERDRAM_WAY_AUTO), "put");
    check(everdram_get(client, "empty", 5, NULL, 0, &bytes) == EVERDRAM_OK && bytes == 0, "an empty value is there");
    pipeline(client);
    check(everdram_delete(client, "long", 4) == EVERDRAM_OK, "the key was there");
    check(everdram_delete(client, "long", 4) == EVERDRAM_ABSENT, "the key is gone");
    check(get(client, "long", &bytes) == NULL, "so is its value");

    /* Mistakes are codes. */
    check(everdram_put(client, NULL, 4, "v", 1, 0, EVERDRAM_WAY_AUTO) == EVERDRAM_ARGUMENT, "no key");
    check(everdram_put(client, "k", 1, "v", SIZE_MAX, 0, EVERDRAM_WAY_AUTO) == EVERDRAM_ARGUMENT, "no such length");
    must(everdram_close(client), "close");
    check(everdram_close(client) == EVERDRAM_CLOSED, "it is closed already");
    check(everdram_put(client, "k", 1, "v", 1, 0, EVERDRAM_WAY_AUTO) == EVERDRAM_CLOSED, "it stays closed");
    puts("done");
    return 0;
}
