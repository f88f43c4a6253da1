//! Questions and answers, as they are sent.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The longest message: with its overhead it fits into the room that the kernel gives a socket.
pub const MESSAGE_BYTES_MAX: usize = 160 << 10;

/// What a service says in place of an answer if it has as many clients as it takes. It has read no question then.
pub(crate) const BUSY: &[u8] = b"busy";

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request<A> {
    /// Of what can be asked.
    pub version: u16,
    /// What is asked.
    pub ask: A,
}

/// The question in a message.
///
/// # Errors
/// Why it is none that can be answered.
pub fn question<A: DeserializeOwned>(message: &[u8], version: u16) -> Result<A, String> {
    let request: Request<Value> =
        serde_json::from_slice(message).map_err(|error| format!("not a request: {error}"))?;
    // What another version asks need not be readable.
    if request.version != version {
        return Err(format!("this is version {version} of the protocol, not {}", request.version));
    }
    serde_json::from_value(request.ask).map_err(|error| format!("not a request: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_of_another_version_is_told_so_whatever_it_is() {
        assert_eq!(question::<u32>(br#"{"version": 2, "ask": 7}"#, 2), Ok(7));
        let text = |message: &[u8]| question::<u32>(message, 2).unwrap_err();
        assert_eq!(
            text(br#"{"version": 3, "ask": {"later": []}}"#),
            "this is version 2 of the protocol, not 3"
        );
        assert!(text(br#"{"version": 2, "ask": "x"}"#).starts_with("not a request: "));
        assert!(text(b"rubbish").starts_with("not a request: "));
        assert!(text(b"").starts_with("not a request: "));
    }
}
