//! For tests and fuzzers alone: everything here that reads what the other side writes. Any bytes do no
//! harm, and what is understood survives being written again.

use std::os::fd::AsFd;

use tombolo_host::shared::{SharedMemory, SharedSpan};

use crate::mailbox::{MAX_MAIL_BYTES, Mailbox};
use crate::slot::{Descriptor, Failure, Target, TransferStatus};

/// A message of the socket.
pub fn message(bytes: &[u8]) {
    if let Some(message) = crate::decode(bytes) {
        assert_eq!(crate::decode(&crate::encode(&message)), Some(message));
    }
}

/// A channel, and its status.
pub fn descriptor(bytes: &[u8]) {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
    }
    if let Ok(descriptor) = Descriptor::decode(&words) {
        assert_eq!(Descriptor::decode(&descriptor.encode()), Ok(descriptor));
    }
    for read in [false, true] {
        let done = (words[5] >> 32) as u32;
        if let Some(status) = TransferStatus::from_word(done, read) {
            assert_eq!(status.word(read), done);
        }
    }
    assert_eq!(Failure::from_code(words[7]).code(), words[7]);
}

/// The memory of a mailbox of four messages: these bytes are its first words and its first place, as
/// its other side leaves them. The node puts some in and the program takes some out.
pub fn mailbox(bytes: &[u8]) {
    let Ok(node) = Mailbox::create(4) else { return };
    let Ok(memory) = node.as_fd().try_clone_to_owned().map(|fd| SharedMemory::open(fd, node.memory_bytes()))
    else {
        return;
    };
    let Ok(memory) = memory else { return };
    let (counts, place) = bytes.split_at(bytes.len().min(128));
    for (offset, bytes) in [(0, counts), (4096, place)] {
        if let Ok(span) = memory.span_mut(offset, bytes.len().min(node.memory_bytes() - offset)) {
            span.copy_from(SharedSpan::from(&bytes[..bytes.len().min(node.memory_bytes() - offset)]));
        }
    }
    let (mut taken, mut written) = (0, 0);
    for _ in 0..5 {
        if let Some(mail) = node.take(&mut taken) {
            assert!(mail.bytes.len() <= MAX_MAIL_BYTES);
        }
        let _ =
            node.put(&mut written, Target { node: 1, domain: 2 }, SharedSpan::from(b"a message".as_slice()));
    }
    assert!(taken <= 5 && written <= 5);
}
