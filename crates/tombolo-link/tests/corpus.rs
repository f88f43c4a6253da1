//! Everything here that reads bytes of others, fed with the fuzzers' corpus and random bytes.

use tombolo_link::fuzzing;

#[path = "../../../fuzz/replay.rs"]
mod replay;

const PUBLIC: &str = "tombolo-public:8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a";
const SECRET: &str = "tombolo-secret:77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a";

fn both(name: &str, target: replay::Target) {
    replay::corpus(name, target);
    replay::random(name, target);
}

#[test]
fn datagrams() {
    for (name, bytes) in fuzzing::datagrams() {
        replay::sample("datagram", name, &bytes);
    }
    both("datagram", fuzzing::datagram);
}

#[test]
fn fragments_of_control_messages() {
    for (name, bytes) in [
        ("whole", b"\x28hello".to_vec()),
        ("parts", b"\x29first\x28secon\x05".to_vec()),
        ("again", b"\x29first\x2cfirst\x28secon\x0d1".to_vec()),
        ("full", [8, b'x'].repeat(70)),
        ("endless", [&[0xF9_u8; 32][..]; 600].concat()),
        ("both-ways", b"\x16to\x16to\x28hello\x06\x05".to_vec()),
    ] {
        replay::sample("control_fragments", name, &bytes);
    }
    both("control_fragments", fuzzing::control_fragments);
}

#[test]
fn messages_that_lead_to_keys() {
    for (name, bytes) in
        [("first", vec![9; 32]), ("second", vec![9; 96]), ("third", vec![9; 65]), ("zero", vec![0; 32])]
    {
        replay::sample("noise", name, &bytes);
    }
    both("noise", fuzzing::noise);
}

#[test]
fn numbers_that_say_where_a_stranger_is() {
    for (name, bytes) in fuzzing::cookies() {
        replay::sample("cookie", name, &bytes);
    }
    both("cookie", fuzzing::cookie);
}

#[test]
fn sealed_datagrams() {
    for (name, bytes) in fuzzing::datagrams() {
        replay::sample("sealed", name, &[bytes, vec![0x5A; 40]].concat());
    }
    for (name, bytes) in fuzzing::counters() {
        replay::sample("sealed", name, &bytes);
    }
    both("sealed", fuzzing::sealed);
}

#[test]
fn first_words_over_shared_memory() {
    for (name, bytes) in fuzzing::shm_handshakes() {
        replay::sample("shm_handshake", name, &bytes);
    }
    both("shm_handshake", fuzzing::shm_handshake);
}

#[test]
fn key_files() {
    for (name, text) in [
        ("key", format!("# mine\n{SECRET}\n")),
        ("public", PUBLIC.to_owned()),
        ("comment", "# nothing\n\n".to_owned()),
        ("cut", SECRET[..60].to_owned()),
    ] {
        replay::sample("key_file", name, text.as_bytes());
    }
    both("key_file", fuzzing::key_file);
}

#[test]
fn allow_lists() {
    for (name, text) in [
        ("two", format!("# friends\n{PUBLIC} one\r\n\t{PUBLIC}# two\n")),
        ("secret", format!("{PUBLIC}\n{SECRET}\n")),
        ("weak", format!("tombolo-public:{}", "0".repeat(64))),
        ("permissions", format!("{PUBLIC} one may=borrow,status\n{PUBLIC} MAY=nothing two # may=read\n")),
        ("no-permission", format!("{PUBLIC} one may=borrow,lend")),
        ("name-first", format!("one {PUBLIC}")),
    ] {
        replay::sample("allow_list", name, text.as_bytes());
    }
    both("allow_list", fuzzing::allow_list);
}

#[test]
fn addresses() {
    for (name, text) in [
        ("shm", "shm:/run/a b.sock"),
        ("udp", "udp:127.0.0.1:7000"),
        ("udp6", "udp:[::1]:1"),
        ("no-port", "udp:127.0.0.1"),
        ("far-port", "udp:127.0.0.1:99999"),
        ("five-numbers", "udp:1.2.3.4.5:7"),
        ("unknown", "tcp:1.2.3.4:5"),
    ] {
        replay::sample("address", name, text.as_bytes());
    }
    both("address", fuzzing::address);
}
