//! Small messages between programs.

use std::ffi::c_void;
use std::time::Duration;

use tombolo_client::{MAX_MAIL_BYTES, SendError};

use crate::{
    Domain, Grant, Mailbox, Result, Started, Target, Transfer, bad_argument, fail, grant, hand_out,
    open_failure, wait_failure,
};

/// The longest message of a mailbox, in bytes.
pub const TOMBOLO_MAX_MAIL: usize = 1024;

const _: () = assert!(TOMBOLO_MAX_MAIL == MAX_MAIL_BYTES);

/// Opens the domain's mailbox (it has one at most), with room for this many messages that are not taken yet: a power
/// of two, at most 4096. `senders` are grants of which only `who` and `number` count. If they include anyone and there is
/// room for 1,024 or more, another node's waiting messages (those of all nodes with one key together) may not exceed the
/// free places: make it twice as large as the largest burst of one sender.
///
/// # Safety
/// `domain` is open, `senders` has `sender_count` entries, `mailbox` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_open_mailbox(
    domain: *const Domain,
    messages: u32,
    senders: *const Grant,
    sender_count: usize,
    mailbox: *mut *mut Mailbox,
) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = (unsafe { domain.as_ref() }) else {
        return bad_argument("tombolo_open_mailbox: domain is null");
    };
    if mailbox.is_null() || (senders.is_null() && sender_count > 0) {
        return bad_argument("tombolo_open_mailbox: a pointer is null");
    }
    let senders = match sender_count {
        0 => &[],
        // SAFETY: there are as many entries as the caller promises.
        count => unsafe { std::slice::from_raw_parts(senders, count) },
    };
    let who = |sender: &Grant| grant(sender).map(|grant| grant.who);
    let Some(senders) = senders.iter().map(who).collect::<Option<Vec<_>>>() else {
        return bad_argument("tombolo_open_mailbox: a sender is nobody");
    };
    match domain.domain.open_mailbox(messages, &senders) {
        Ok(opened) => {
            // SAFETY: can be written, as the caller promises.
            unsafe { mailbox.write(Box::into_raw(Box::new(Mailbox(opened)))) };
            Result::Ok
        }
        Err(error) => open_failure(&error),
    }
}

/// Starts sending a message, of 1 to `TOMBOLO_MAX_MAIL` bytes, to the target's mailbox. While that is
/// full the node tries again, for some seconds; then it is refused.
///
/// # Safety
/// `domain` is open, `message` has `bytes` bytes, `transfer` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_send(
    domain: *const Domain,
    target: Target,
    message: *const c_void,
    bytes: usize,
    transfer: *mut *mut Transfer,
) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = (unsafe { domain.as_ref() }) else {
        return bad_argument("tombolo_send: domain is null");
    };
    if message.is_null() || transfer.is_null() || !(1..=MAX_MAIL_BYTES).contains(&bytes) {
        return bad_argument("tombolo_send: a pointer is null, or the message is empty or too long");
    }
    // SAFETY: there are as many bytes as the caller promises.
    let message = unsafe { std::slice::from_raw_parts(message.cast(), bytes) };
    match domain.domain.send(target.into(), message) {
        // SAFETY: can be written, as the caller promises.
        Ok(started) => unsafe { hand_out(Ok(Started::Plain(started)), transfer) },
        Err(SendError::Post(error)) => fail(Result::NoChannel, &error.to_string()),
        Err(SendError::Memory(error)) => open_failure(&error),
        Err(error @ SendError::Length(_)) => bad_argument(&error.to_string()),
    }
}

/// Waits for the next message, at most this many milliseconds (0: does not wait), and copies it to `message`, which
/// has room for `TOMBOLO_MAX_MAIL` bytes. Says how long it is and, unless null, who sent it.
///
/// # Safety
/// `mailbox` is null or open, `message` has that room, `bytes` can be written, `from` too or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_receive(
    mailbox: *const Mailbox,
    milliseconds: u32,
    message: *mut c_void,
    bytes: *mut usize,
    from: *mut Target,
) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(mailbox) = (unsafe { mailbox.as_ref() }) else {
        return bad_argument("tombolo_receive: mailbox is null");
    };
    if message.is_null() || bytes.is_null() {
        return bad_argument("tombolo_receive: a pointer is null");
    }
    match mailbox.0.receive(Duration::from_millis(milliseconds.into())) {
        Ok(mail) => {
            // SAFETY: a message is no longer than the room that the caller promises.
            unsafe {
                std::ptr::copy_nonoverlapping(mail.bytes.as_ptr(), message.cast(), mail.bytes.len());
                bytes.write(mail.bytes.len());
            }
            if !from.is_null() {
                // SAFETY: can be written, as the caller promises.
                unsafe { from.write(Target { node: mail.from.node, domain: mail.from.domain }) };
            }
            Result::Ok
        }
        Err(error) => wait_failure(error),
    }
}

/// Releases the handle of a mailbox, which stays as long as its domain. Null is nothing.
///
/// # Safety
/// `mailbox` came from `tombolo_open_mailbox` and is not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_close_mailbox(mailbox: *mut Mailbox) {
    if !mailbox.is_null() {
        // SAFETY: from `Box::into_raw`, and the caller's last use.
        drop(unsafe { Box::from_raw(mailbox) });
    }
}
