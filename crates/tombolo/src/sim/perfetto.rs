//! A timeline in the format of ui.perfetto.dev: a stream of protobuf messages, of which a handful of fields are needed.
//!
//! A trace is a list of packets (field 1). A packet has a timestamp (8), a sequence (10), and a track descriptor (60) or an event (11). Field
//! numbers are those of Perfetto's `trace_packet.proto`, `track_event.proto` and `track_descriptor.proto`.

use tombolo_sim::study::{Outcome, Track};

/// A message that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn number(&mut self, mut value: u64) {
        loop {
            let bits = (value & 0x7f) as u8;
            value >>= 7;
            self.0.push(if value == 0 { bits } else { bits | 0x80 });
            if value == 0 {
                return;
            }
        }
    }

    /// A field that is a number.
    fn varint(mut self, field: u64, value: u64) -> Self {
        self.number(field << 3);
        self.number(value);
        self
    }

    /// A field that is eight bytes.
    fn fixed(mut self, field: u64, value: u64) -> Self {
        self.number(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A field that is bytes: text, or another message.
    fn bytes(mut self, field: u64, value: &[u8]) -> Self {
        self.number(field << 3 | 2);
        self.number(value.len() as u64);
        self.0.extend(value);
        self
    }
}

/// What events are, of `TrackEvent.Type`.
const BEGIN: u64 = 1;
const END: u64 = 2;
/// All packets are of one sequence, whose state is cleared by the first (`SEQ_INCREMENTAL_STATE_CLEARED`).
const SEQUENCE: u64 = 1;
const CLEARED: u64 = 1;
const PICOS_PER_NANO: u64 = 1_000;

/// Slices that overlap need tracks of their own: each goes to the first on which it follows the one before.
fn lanes(track: &Track) -> Vec<Vec<usize>> {
    let mut lanes: Vec<Vec<usize>> = Vec::new();
    for (number, slice) in track.slices.iter().enumerate() {
        let free =
            |lane: &&mut Vec<usize>| lane.last().is_some_and(|last| track.slices[*last].to <= slice.from);
        match lanes.iter_mut().find(free) {
            Some(lane) => lane.push(number),
            None => lanes.push(vec![number]),
        }
    }
    lanes
}

fn packet(trace: &mut Vec<u8>, packet: Message) {
    let whole = Message::default().bytes(1, &packet.varint(10, SEQUENCE).0);
    trace.extend(whole.0);
}

fn descriptor(number: u64, parent: Option<u64>, name: &str) -> Message {
    let is = Message::default().varint(1, number).bytes(2, name.as_bytes());
    let is = parent.into_iter().fold(is, |is, parent| is.varint(5, parent));
    Message::default().bytes(60, &is.0)
}

fn event(at_ns: u64, event: &Message) -> Message {
    Message::default().varint(8, at_ns).bytes(11, &event.0)
}

/// The tracks of a run: a group for each part, and in it a track for each thing that it does.
pub fn trace(outcome: &Outcome) -> Vec<u8> {
    let (mut trace, mut next, mut group) = (Vec::new(), 1, None::<(u64, String)>);
    packet(&mut trace, Message::default().varint(13, CLEARED));
    for track in &outcome.tracks {
        let is_new = group.as_ref().is_none_or(|(_, part)| *part != track.part);
        if is_new {
            packet(&mut trace, descriptor(next, None, &track.part));
            group = Some((next, track.part.clone()));
            next += 1;
        }
        let parent = group.as_ref().map(|(number, _)| *number);
        for lane in lanes(track) {
            packet(&mut trace, descriptor(next, parent, track.name));
            for slice in lane.iter().map(|number| &track.slices[*number]) {
                let begin =
                    Message::default().varint(9, BEGIN).varint(11, next).bytes(23, slice.name.as_bytes());
                let begin = if slice.flow == 0 { begin } else { begin.fixed(47, slice.flow.into()) };
                packet(&mut trace, event(slice.from.picos() / PICOS_PER_NANO, &begin));
                let end = Message::default().varint(9, END).varint(11, next);
                packet(&mut trace, event(slice.to.picos() / PICOS_PER_NANO, &end));
            }
            next += 1;
        }
    }
    trace
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_sim::study::{Scenario, run};

    /// Byte by byte as the format's own description has it: a packet is field 1 of a trace; in it field 8 is the time, 10 the sequence, 11 an
    /// event, 60 a descriptor; of an event field 9 is the type, 11 the track, 23 the name, 47 the flows; of a descriptor 1 the number, 2 the
    /// name, 5 the parent.
    #[test]
    fn packets_are_these_bytes() {
        let of = |message: Message| {
            let mut trace = Vec::new();
            packet(&mut trace, message);
            trace
        };
        let group = [&b"\x0a\x0f\xe2\x03\x0a\x08\x01\x12\x06"[..], b"node 0", b"\x50\x01"].concat();
        assert_eq!(of(descriptor(1, None, "node 0")), group);
        let track = [&b"\x0a\x0f\xe2\x03\x0a\x08\x02\x12\x04"[..], b"line", b"\x28\x01\x50\x01"].concat();
        assert_eq!(of(descriptor(2, Some(1), "line")), track);
        let begin = Message::default().varint(9, BEGIN).varint(11, 2).bytes(23, b"sends").fixed(47, 7);
        let begun = [
            &b"\x0a\x1d\x40\xac\x02\x5a\x16\x48\x01\x58\x02\xba\x01\x05"[..],
            b"sends",
            b"\xf9\x02\x07\0\0\0\0\0\0\0\x50\x01",
        ]
        .concat();
        assert_eq!(of(event(300, &begin)), begun);
    }

    /// A field: its number, and a number or bytes.
    enum Field<'a> {
        Number(u64, u64),
        Bytes(u64, &'a [u8]),
    }

    fn number(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (first, rest) = bytes.split_first().expect("more bytes");
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            shift += 7;
            if first & 0x80 == 0 {
                return value;
            }
        }
    }

    fn fields(mut bytes: &[u8]) -> Vec<Field<'_>> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = number(&mut bytes);
            fields.push(match key & 7 {
                0 => Field::Number(key >> 3, number(&mut bytes)),
                1 => {
                    let (value, rest) = bytes.split_first_chunk::<8>().expect("eight bytes");
                    bytes = rest;
                    Field::Number(key >> 3, u64::from_le_bytes(*value))
                }
                2 => {
                    let length = number(&mut bytes) as usize;
                    let (value, rest) = bytes.split_at(length);
                    bytes = rest;
                    Field::Bytes(key >> 3, value)
                }
                kind => panic!("field of kind {kind}"),
            });
        }
        fields
    }

    fn one(fields: &[Field<'_>], wanted: u64) -> Option<u64> {
        fields.iter().find_map(|field| match field {
            Field::Number(number, value) if *number == wanted => Some(*value),
            _ => None,
        })
    }

    fn inner<'a>(fields: &[Field<'a>], wanted: u64) -> Option<&'a [u8]> {
        fields.iter().find_map(|field| match field {
            Field::Bytes(number, value) if *number == wanted => Some(*value),
            _ => None,
        })
    }

    /// Every slice begins and ends on a track that was described before, in order; flows have both ends.
    #[test]
    fn a_trace_is_what_its_reader_wants() {
        let text = "platform = \"exanest-qfdb\"\n[topology]\nkind = \"ring\"\nnodes = 3\n[workload]\nkind = \"all-to-all\"\nbytes = 40000\noutstanding = 2\ncount = 2";
        let scenario = Scenario::parse(text, &[]).expect("a scenario");
        let trace = trace(&run(&scenario, true).expect("it runs"));
        let mut tracks = std::collections::BTreeMap::new();
        let (mut slices, mut flows) = (0, std::collections::BTreeMap::<u64, u32>::new());
        for field in fields(&trace) {
            let Field::Bytes(1, packet) = field else { panic!("not a packet") };
            let packet = fields(packet);
            if let Some(is) = inner(&packet, 60) {
                let is = fields(is);
                let parent = one(&is, 5);
                assert!(parent.is_none_or(|parent| tracks.contains_key(&parent)));
                let name = std::str::from_utf8(inner(&is, 2).expect("a name")).expect("text");
                assert!(!name.is_empty());
                tracks.insert(one(&is, 1).expect("a number"), (0, false));
            }
            let Some(event) = inner(&packet, 11) else { continue };
            let (event, at) = (fields(event), one(&packet, 8).expect("a time"));
            let (last, is_open) = tracks.get_mut(&one(&event, 11).expect("a track")).expect("described");
            assert!(at >= *last, "{at} after {last}");
            let kind = one(&event, 9).expect("a kind");
            assert_eq!(*is_open, kind == END);
            (*last, *is_open) = (at, kind == BEGIN);
            slices += u32::from(kind == BEGIN);
            if let Some(flow) = one(&event, 47) {
                *flows.entry(flow).or_default() += 1;
            }
        }
        assert!(tracks.values().all(|(_, is_open)| !is_open));
        // Of each of 12 transfers: itself, and the packets of its blocks, by one line or more.
        assert!(
            slices > 12 * 100 && flows.len() == 12 && flows.values().all(|count| *count > 100),
            "{flows:?}"
        );
    }
}
