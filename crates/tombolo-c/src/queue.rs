//! Queues of transfers: begun in batches, and their ends.

use std::time::Duration;

use tombolo_client::{PostError, WaitError};

use crate::transfer::wanted;
use crate::{Completion, Domain, List, Order, Piece, Queue, Result, bad_argument, fail, wait_failure};

/// Opens a queue for any number of transfers of a domain, of which `capacity` at most have an end that was not
/// taken. One thread at a time may use it; each may have its own.
///
/// # Safety
/// `domain` is open, `queue` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_open_queue(
    domain: *const Domain,
    capacity: usize,
    queue: *mut *mut Queue,
) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = (unsafe { domain.as_ref() }) else {
        return bad_argument("tombolo_open_queue: domain is null");
    };
    if queue.is_null() || capacity == 0 {
        return bad_argument(
            "tombolo_open_queue: a queue without a place for its handle, or for any transfer",
        );
    }
    // SAFETY: can be written, as the caller promises.
    unsafe { queue.write(Box::into_raw(Box::new(Queue(domain.domain.queue(capacity))))) };
    Result::Ok
}

fn order(order: &Order) -> Option<tombolo_client::Order> {
    use tombolo_client::Order as Wanted;
    let (target, address) = (order.target.into(), order.spec.destination_address);
    let made = match order.kind {
        0 => Wanted::write(target, wanted(&order.spec)?),
        1 => Wanted::read(target, wanted(&order.spec)?),
        2 => Wanted::carry(order.source.into(), target, wanted(&order.spec)?),
        3 => Wanted::fetch_add(target, address, order.operand),
        4 => Wanted::compare_swap(target, address, order.compare, order.operand),
        _ => return None,
    };
    Some(if order.fenced { made.fenced() } else { made })
}

/// Posts `count` orders. Those that can begin at once do so together; the others begin as channels become free, each
/// direction in its order. `posted` becomes their number, unless it is null: fewer than `count` if the queue is full,
/// which is `NO_CHANNEL`. If one of them makes no sense, none is posted.
///
/// # Safety
/// `queue` is open, `orders` has `count` entries, `posted` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_post(
    queue: *mut Queue,
    orders: *const Order,
    count: usize,
    posted: *mut usize,
) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(queue) = (unsafe { queue.as_mut() }) else {
        return bad_argument("tombolo_post: queue is null");
    };
    if orders.is_null() && count > 0 {
        return bad_argument("tombolo_post: orders is null");
    }
    let orders = match count {
        0 => &[],
        // SAFETY: there are as many as the caller promises.
        count => unsafe { std::slice::from_raw_parts(orders, count) },
    };
    let made: Option<Vec<_>> =
        orders.iter().map(|entry| order(entry).map(|made| (made, entry.context))).collect();
    let Some(made) = made else {
        return bad_argument("tombolo_post: the kind or class of an order is unknown");
    };
    let taken = queue.0.post_all(made);
    if !posted.is_null() {
        // SAFETY: can be written, as the caller promises.
        unsafe { posted.write(taken) };
    }
    if taken == count {
        return Result::Ok;
    }
    fail(Result::NoChannel, &PostError::QueueFull(queue.0.len()).to_string())
}

/// The pieces that are `count` from there.
///
/// # Safety
/// There are as many, or `pieces` is null.
unsafe fn pieces_of(pieces: *const Piece, count: usize) -> Option<Vec<tombolo_client::Piece>> {
    if pieces.is_null() {
        return None;
    }
    // SAFETY: there are as many as the caller promises.
    let pieces = unsafe { std::slice::from_raw_parts(pieces, count) };
    Some(pieces.iter().map(|piece| tombolo_client::Piece::new(piece.address, piece.length)).collect())
}

/// Posts a list, which has one end. `NO_CHANNEL`: the queue is full. Its pieces are needed no more when this returns.
///
/// # Safety
/// `queue` is open, `list` is valid, and so are as many pieces as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_post_list(queue: *mut Queue, list: *const List) -> Result {
    use tombolo_client::List as Wanted;
    // SAFETY: null or as the caller promises.
    let (Some(queue), Some(list)) = (unsafe { queue.as_mut() }, unsafe { list.as_ref() }) else {
        return bad_argument("tombolo_post_list: queue or list is null");
    };
    // SAFETY: there are as many as the caller promises.
    let (sources, destinations) = unsafe {
        (pieces_of(list.sources, list.source_count), pieces_of(list.destinations, list.destination_count))
    };
    let (Some(sources), Some(destinations)) = (sources, destinations) else {
        return bad_argument("tombolo_post_list: the pieces are null");
    };
    let target = list.target.into();
    let made = match list.kind {
        0 => Wanted::write(target, &sources, &destinations),
        1 => Wanted::read(target, &sources, &destinations),
        2 => Wanted::carry(list.source.into(), target, &sources, &destinations),
        _ => return bad_argument("tombolo_post_list: the kind of a list is WRITE, READ or CARRY"),
    };
    let mut made = match made {
        Ok(made) => made,
        Err(error) => return bad_argument(&error.to_string()),
    };
    if list.notify {
        made = made.notify(tombolo_client::Notification {
            address: list.notification_address,
            first: list.first,
            last: list.last,
        });
    }
    match list.class_hint {
        0 => {}
        class @ 1..=3 => made = made.in_class(class as u8 - 1),
        _ => return bad_argument("tombolo_post_list: a class that is none"),
    }
    let made = if list.fenced { made.fenced() } else { made };
    match queue.0.post_list(made, list.context) {
        Ok(()) => Result::Ok,
        Err(error) => fail(Result::NoChannel, &error.to_string()),
    }
}

fn completion(end: tombolo_client::Completion) -> Completion {
    let (result, before) = match end.outcome {
        Ok(before) => (Result::Ok, before),
        Err(error) => (wait_failure(error), 0),
    };
    Completion { context: end.context, before, result }
}

/// Takes up to `most` ends. Returns how many there were. If transfers among them have failed, `tombolo_error` says how the
/// last of these did. No system call, unless the node sleeps and is to begin more.
///
/// # Safety
/// `queue` is null or open, `completions` has room for `most`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_poll_queue(
    queue: *mut Queue,
    completions: *mut Completion,
    most: usize,
) -> usize {
    // SAFETY: null or open, as the caller promises.
    let Some(queue) = (unsafe { queue.as_mut() }) else { return 0 };
    if completions.is_null() {
        return 0;
    }
    let mut ends = Vec::new();
    queue.0.poll(&mut ends, most);
    for (index, &end) in ends.iter().enumerate() {
        // SAFETY: there is room for `most`, as the caller promises, and there are no more.
        unsafe { completions.add(index).write(completion(end)) };
    }
    ends.len()
}

/// Waits for an end, at most this many milliseconds, and takes it: `OK`, and how it ended is in `completion`. If every end
/// was taken already: `BAD_ARGUMENT`.
///
/// # Safety
/// `queue` is open, `completion` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_wait_any(
    queue: *mut Queue,
    completion: *mut Completion,
    milliseconds: u32,
) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(queue) = (unsafe { queue.as_mut() }) else {
        return bad_argument("tombolo_wait_any: queue is null");
    };
    if completion.is_null() {
        return bad_argument("tombolo_wait_any: completion is null");
    }
    match queue.0.wait_any(Duration::from_millis(milliseconds.into())) {
        Ok(Some(end)) => {
            // SAFETY: can be written, as the caller promises.
            unsafe { completion.write(self::completion(end)) };
            Result::Ok
        }
        Ok(None) => bad_argument("tombolo_wait_any: every end was taken"),
        Err(WaitError::TimedOut(_)) => {
            fail(Result::TimedOut, &format!("no transfer of the queue ended within {milliseconds} ms"))
        }
        Err(error) => wait_failure(error),
    }
}

/// How many transfers of a queue have an end that was not taken; 0 for null.
///
/// # Safety
/// `queue` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_queue_length(queue: *const Queue) -> usize {
    // SAFETY: null or open, as the caller promises.
    unsafe { queue.as_ref() }.map_or(0, |queue| queue.0.len())
}

/// Closes a queue: what has begun goes on, and what has not does not begin. Null is nothing.
///
/// # Safety
/// `queue` came from `tombolo_open_queue` and is not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_close_queue(queue: *mut Queue) {
    if !queue.is_null() {
        // SAFETY: from `Box::into_raw`, and the caller's last use.
        drop(unsafe { Box::from_raw(queue) });
    }
}
