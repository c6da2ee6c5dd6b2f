//! What calls return: numbers, as the header has them.

use everdram_fabric::{ClientError, ClusterError, Status};

macro_rules! codes {
    ($($name:ident = $number:expr),* $(,)?) => {
        $(#[doc = "See the header."] pub const $name: i32 = $number;)*
        /// All of them, for the comparison with the header.
        pub const ALL: &[(&str, i32)] = &[$((stringify!($name), $number)),*];
    };
}

codes! {
    OK = 0,
    ABSENT = 1,
    ARGUMENT = -1,
    ADDRESS = -2,
    LIBRARY = -3,
    NO_DOOR = -4,
    DENIED = -5,
    KEY_LENGTH = -6,
    VALUE_LENGTH = -7,
    UNKNOWN = -8,
    GONE = -9,
    FULL = -10,
    LOADING = -11,
    REFUSED = -12,
    FAILED = -13,
    NOT_OFFERED = -14,
    ROOM = -15,
    CLOSED = -16,
    IN_USE = -17,
    SAME_POOL = -18,
    OTHER_POOL = -19,
    NO_VALUE = -20,
    LINK = -21,
    BUG = -22,
    BUSY = -23,
}

/// A failed call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: i32, text: impl Into<String>) -> Failure {
        let text = text.into();
        Failure { code, text }
    }
}

impl From<ClusterError> for Failure {
    fn from(error: ClusterError) -> Failure {
        let code = match &error {
            ClusterError::Empty | ClusterError::TooMany(_) => ARGUMENT,
            ClusterError::Identity(_) => ADDRESS,
            ClusterError::SamePool { .. } => SAME_POOL,
            ClusterError::OtherPool { .. } => OTHER_POOL,
            ClusterError::Gone { .. } => GONE,
            ClusterError::Server { error, .. } => of_client(error),
        };
        Failure::new(code, error.to_string())
    }
}

fn of_client(error: &ClientError) -> i32 {
    match error {
        ClientError::Library(_) => LIBRARY,
        ClientError::Address(_) => ADDRESS,
        ClientError::NoDoor => NO_DOOR,
        ClientError::Unknown => UNKNOWN,
        ClientError::KeyLength(_) => KEY_LENGTH,
        ClientError::ValueLength(_) => VALUE_LENGTH,
        ClientError::NotOffered => NOT_OFFERED,
        ClientError::Refused { status, .. } => match status {
            Status::Denied => DENIED,
            Status::Full => FULL,
            Status::Loading => LOADING,
            Status::Torn | Status::Failed => FAILED,
            Status::Busy => BUSY,
            _ => REFUSED,
        },
        _ => LINK,
    }
}
