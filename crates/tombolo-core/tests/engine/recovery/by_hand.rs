//! One engine that a test drives by hand: each packet of its peer is made here.

use tombolo_core::rdma::{
    Action, Block, Config, Direction, DropReason, Engine, Placement, Time, Transfer, TransferError, Verdict,
};
use tombolo_wire::{
    Ack, Asker, Attempt, DataHeader, Generation, Nack, NackCode, NotificationMark, Packet, Payload,
    RequestId, TransactionId,
};

use crate::bench::{BASE, DOMAIN, OTHER};

pub const SECOND: u64 = 1_000_000_000;

pub fn engine(config: Config) -> Engine {
    let mut engine = Engine::new(config);
    engine.add_peer(Time(0), OTHER);
    engine
}

pub fn transfer(direction: Direction, size_bytes: u32) -> Transfer {
    Transfer {
        direction,
        domain: DOMAIN,
        own_domain: DOMAIN,
        source_address: BASE,
        destination_address: 2 * BASE,
        size_bytes,
        notification: None,
        class: None,
        user: 0,
    }
}

pub fn next_block(engine: &mut Engine, now: Time) -> Option<Block> {
    std::iter::from_fn(|| engine.poll(now)).find_map(|action| match action {
        Action::SendBlock(block) => Some(block),
        _ => None,
    })
}

pub fn status(engine: &mut Engine, now: Time) -> Option<Result<(), TransferError>> {
    std::iter::from_fn(|| engine.poll(now)).find_map(|action| match action {
        Action::Complete(completion) => Some(completion.status),
        _ => None,
    })
}

pub fn ack(block: &Block) -> Packet<'static> {
    Packet::Ack(Ack {
        transaction: block.transaction,
        generation: block.generation,
        attempt: block.attempt,
        bytes_only: false,
    })
}

pub fn nack(block: &Block, code: NackCode) -> Packet<'static> {
    Packet::Nack(Nack {
        transaction: block.transaction,
        generation: block.generation,
        attempt: block.attempt,
        refusal: code.into(),
    })
}

/// A data packet of one whole small block.
pub fn data(slot: u16, generation: u32, request: Option<u32>, address: u64) -> DataHeader {
    DataHeader {
        domain: DOMAIN,
        transaction: TransactionId(slot),
        generation: Generation(generation),
        attempt: Attempt(0),
        block_address: address,
        block_bytes: 8,
        offset_bytes: 0,
        payload_bytes: 8,
        in_reply_to: request.map(RequestId),
        asker: Asker::SENDER,
        notification: NotificationMark::None,
    }
}

pub fn receive(engine: &mut Engine, header: DataHeader) -> Verdict {
    engine.handle(Time(0), OTHER, &Packet::Data(header, Payload::Intact(&[1; 8])))
}

pub fn place(engine: &mut Engine, header: DataHeader) -> Placement {
    match receive(engine, header) {
        Verdict::Place(placement) => placement,
        other => panic!("not placed: {other:?}"),
    }
}

/// 256 bytes of a read's answer.
pub fn piece(generation: u32, request: u32, address: u64) -> DataHeader {
    DataHeader { block_bytes: 256, payload_bytes: 256, ..data(0, generation, Some(request), address) }
}

pub fn arrive(engine: &mut Engine, now: Time, header: DataHeader) {
    match engine.handle(now, OTHER, &Packet::Data(header, Payload::Intact(&[1; 256]))) {
        Verdict::Place(placement) => engine.placed(placement),
        verdict => assert_eq!(verdict, Verdict::Dropped(DropReason::Unasked)),
    }
}
