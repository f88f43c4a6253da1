//! Questions of programs and answers of the node, bit by bit.

use super::{Address, Reader, VERSION, Writer};

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 96;
/// Bytes of an answer.
pub const ANSWER_BYTES: usize = 288;
/// What a program sends once it has the end that it was given.
pub const TAKEN: [u8; 1] = *b"T";
/// The longest value of an option that is asked for or set.
pub const VALUE_BYTES: usize = 256;
/// The longest value that is set.
pub const SET_BYTES: usize = 32;

/// What a program asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// For the table, which comes with the answer.
    Table,
    /// It listens at the socket that comes with it.
    Listen,
    /// The socket that comes with it is to be connected.
    Connect {
        /// The process.
        token: u64,
        /// Where to.
        to: Address,
    },
    /// The socket that comes with it was accepted.
    Accept {
        /// The process.
        token: u64,
    },
    /// The end that comes with it was closed, and written to its end before. There is no answer.
    Close,
    /// The end that comes with it is closed when the connection ends, with the process. There is no answer.
    CloseAtEnd,
    /// The value of an option of the TCP connection that the end stands for that comes with it.
    Get {
        /// As getsockopt(2) has it.
        level: i32,
        /// The same.
        name: i32,
        /// Bytes that there is room for.
        length: u32,
    },
    /// An option of that is set. There is no answer.
    Set {
        /// As setsockopt(2) has it.
        level: i32,
        /// The same.
        name: i32,
        /// Bytes of the value that count.
        length: u32,
        /// The value.
        value: [u8; SET_BYTES],
    },
}

impl Request {
    /// As it is sent.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        let mut writer = Writer::new(&mut bytes);
        writer.bytes(&VERSION.to_le_bytes());
        match self {
            Self::Table => writer.bytes(&[1]),
            Self::Listen => writer.bytes(&[2]),
            Self::Connect { token, to } => {
                writer.bytes(&[3]);
                writer.bytes(&token.to_le_bytes());
                to.encode(&mut writer);
            }
            Self::Accept { token } => {
                writer.bytes(&[4]);
                writer.bytes(&token.to_le_bytes());
            }
            Self::Close => writer.bytes(&[5]),
            Self::CloseAtEnd => writer.bytes(&[8]),
            Self::Get { level, name, length } => {
                writer.bytes(&[6]);
                writer.bytes(&level.to_le_bytes());
                writer.bytes(&name.to_le_bytes());
                writer.bytes(&length.to_le_bytes());
            }
            Self::Set { level, name, length, value } => {
                writer.bytes(&[7]);
                writer.bytes(&level.to_le_bytes());
                writer.bytes(&name.to_le_bytes());
                writer.bytes(&length.to_le_bytes());
                writer.bytes(value);
            }
        }
        bytes
    }

    /// Reads one. `None`: it is of another version, or none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != REQUEST_BYTES {
            return None;
        }
        let mut reader = Reader(bytes);
        if u32::from_le_bytes(reader.array()?) != VERSION {
            return None;
        }
        let [kind] = reader.array()?;
        let request = match kind {
            1 => Self::Table,
            2 => Self::Listen,
            3 => Self::Connect {
                token: u64::from_le_bytes(reader.array()?),
                to: Address::decode(&mut reader)?,
            },
            4 => Self::Accept { token: u64::from_le_bytes(reader.array()?) },
            5 => Self::Close,
            8 => Self::CloseAtEnd,
            6 | 7 => {
                let (level, name) =
                    (i32::from_le_bytes(reader.array()?), i32::from_le_bytes(reader.array()?));
                let length = u32::from_le_bytes(reader.array()?);
                if kind == 6 {
                    let _ = usize::try_from(length).ok().filter(|length| *length <= VALUE_BYTES)?;
                    Self::Get { level, name, length }
                } else {
                    let _ = usize::try_from(length).ok().filter(|length| *length <= SET_BYTES)?;
                    Self::Set { level, name, length, value: reader.array()? }
                }
            }
            _ => return None,
        };
        reader.0.iter().all(|byte| *byte == 0).then_some(request)
    }
}

/// What the node answers.
#[allow(clippy::large_enum_variant, reason = "a library without an allocator reads it, onto the stack")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The table comes with it, or the listener is noted.
    Done,
    /// The end of that connection comes with it.
    End {
        /// Its number.
        id: u64,
    },
    /// The connection stays TCP.
    Tcp {
        /// The node has begun to connect the socket.
        is_begun: bool,
    },
    /// The value of an option, or why there is none.
    Value {
        /// 0, or the number of an error.
        error: i32,
        /// Bytes of the value.
        length: u32,
        /// The value.
        value: [u8; VALUE_BYTES],
    },
}

impl Answer {
    /// As it is sent.
    pub fn encode(&self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        let mut writer = Writer::new(&mut bytes);
        match self {
            Self::Done => writer.bytes(&[1]),
            Self::End { id } => {
                writer.bytes(&[2]);
                writer.bytes(&id.to_le_bytes());
            }
            Self::Tcp { is_begun } => writer.bytes(&[3, u8::from(*is_begun)]),
            Self::Value { error, length, value } => {
                writer.bytes(&[4]);
                writer.bytes(&error.to_le_bytes());
                writer.bytes(&length.to_le_bytes());
                writer.bytes(value);
            }
        }
        bytes
    }

    /// Reads one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != ANSWER_BYTES {
            return None;
        }
        let mut reader = Reader(bytes);
        let [kind] = reader.array()?;
        Some(match kind {
            1 => Self::Done,
            2 => Self::End { id: u64::from_le_bytes(reader.array()?) },
            3 => {
                let [is_begun] = reader.array()?;
                Self::Tcp { is_begun: is_begun == 1 }
            }
            4 => {
                let (error, length) =
                    (i32::from_le_bytes(reader.array()?), u32::from_le_bytes(reader.array()?));
                let _ = usize::try_from(length).ok().filter(|length| *length <= VALUE_BYTES)?;
                Self::Value { error, length, value: reader.array()? }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written() {
        let requests = [
            Request::Table,
            Request::Listen,
            Request::Connect { token: 7, to: Address { is_v4: false, ip: [3; 16], port: 80 } },
            Request::Accept { token: u64::MAX },
            Request::Close,
            Request::CloseAtEnd,
            Request::Get { level: 6, name: 11, length: 104 },
            Request::Set { level: 6, name: 1, length: 4, value: [1; SET_BYTES] },
        ];
        for request in requests {
            let bytes = request.encode();
            assert_eq!(Request::decode(&bytes), Some(request));
            assert_eq!(Request::decode(&bytes[1..]), None);
            let mut other = bytes;
            other[0] += 1;
            assert_eq!(Request::decode(&other), None, "another version");
            let mut longer = bytes;
            longer[REQUEST_BYTES - 1] = 1;
            assert_eq!(Request::decode(&longer), None, "something behind it");
        }
        let too_long = Request::Get { level: 6, name: 11, length: 257 };
        assert_eq!(Request::decode(&too_long.encode()), None);
        let value = [0; SET_BYTES];
        let too_long = Request::Set { level: 6, name: 11, length: 33, value };
        assert_eq!(Request::decode(&too_long.encode()), None);
    }

    #[test]
    fn answers_are_read_as_they_were_written() {
        let answers = [
            Answer::Done,
            Answer::End { id: 1 << 63 },
            Answer::Tcp { is_begun: true },
            Answer::Tcp { is_begun: false },
            Answer::Value { error: 22, length: 256, value: [7; VALUE_BYTES] },
        ];
        for answer in answers {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
        assert_eq!(Answer::decode(&[0; ANSWER_BYTES]), None);
        let too_long = Answer::Value { error: 0, length: 257, value: [0; VALUE_BYTES] };
        assert_eq!(Answer::decode(&too_long.encode()), None);
    }
}
