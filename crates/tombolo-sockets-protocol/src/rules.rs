//! Rules by which a program's sockets are handed over or stay TCP, as `libsdp.conf` has them (SDP §4.1.1).
//!
//! ```text
//! # comment
//! log min-level 9 destination file sdp.log      (read, and without effect here)
//! use both server *     *:*
//! use tcp  client nginx 10.0.0.0/8:80-443
//! ```
//!
//! The first rule that fits counts. Without one, or without a file, both are tried: a connection is handed over where that is possible, and
//! TCP elsewhere. A rule is looked for in the text each time, so that nothing is kept.

use super::Address;

/// The longest file of rules, and one byte.
pub const RULES_MAX: usize = 16 << 10;

/// What a program does with a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// TCP alone.
    Tcp,
    /// Handed over, or refused.
    Sdp,
    /// Handed over where that is possible.
    Both,
}

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It listens there.
    Server,
    /// It connects to there.
    Client,
}

/// Why a file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRule {
    /// Its line, from 1 on.
    pub line: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// What the rules say of a socket of `program`. A line that is none is passed over: [`check`] has said so.
pub fn decide(text: &[u8], role: Role, program: &[u8], address: &Address) -> Use {
    let rules = text.split(|byte| *byte == b'\n').filter_map(|line| rule(line).ok().flatten());
    let mut fitting = rules.filter(|rule| rule.fits(role, program, address));
    fitting.next().map_or(Use::Both, |rule| rule.what)
}

/// Looks at each line.
///
/// # Errors
/// The first that is wrong.
pub fn check(text: &[u8]) -> Result<(), BadRule> {
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        rule(line).map_err(|what| BadRule { line: number + 1, what })?;
    }
    Ok(())
}

struct Rule<'a> {
    what: Use,
    role: Role,
    program: &'a [u8],
    /// Any, or an address and how many of its bits count.
    address: Option<([u8; 16], u32)>,
    ports: (u16, u16),
}

impl Rule<'_> {
    fn fits(&self, role: Role, program: &[u8], to: &Address) -> bool {
        let is_in = |(address, bits): ([u8; 16], u32)| {
            let differing = u128::from_be_bytes(address) ^ u128::from_be_bytes(to.ip);
            bits == 0 || differing >> (128 - bits) == 0
        };
        self.role == role
            && (self.program == b"*" || self.program == program)
            && self.address.is_none_or(is_in)
            && (self.ports.0..=self.ports.1).contains(&to.port)
    }
}

fn rule(line: &[u8]) -> Result<Option<Rule<'_>>, &'static str> {
    let line = line.split(|byte| *byte == b'#').next().unwrap_or(line);
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    match words.next() {
        None => return Ok(None),
        Some(b"log") => return Ok(None),
        Some(b"use") => {}
        Some(_) => return Err("a line begins with `use` or `log`"),
    }
    let what = match words.next() {
        Some(b"tcp") => Use::Tcp,
        Some(b"sdp") => Use::Sdp,
        Some(b"both") => Use::Both,
        _ => return Err("`use` is followed by `tcp`, `sdp` or `both`"),
    };
    let role = match words.next() {
        Some(b"server" | b"listen") => Role::Server,
        Some(b"client" | b"connect") => Role::Client,
        _ => return Err("then comes `server` or `client`"),
    };
    let program = words.next().ok_or("then comes the name of a program, or `*`")?;
    let place = words.next().ok_or("then comes ADDRESS[/PREFIX]:PORT[-PORT], each of which may be `*`")?;
    if words.next().is_some() {
        return Err("nothing follows the port");
    }
    let colon = place.iter().rposition(|byte| *byte == b':').ok_or("a port is missing, behind a colon")?;
    let (address, ports) = (&place[..colon], &place[colon + 1..]);
    let (address, ports) = (network(address)?, range(ports)?);
    Ok(Some(Rule { what, role, program, address, ports }))
}

fn text(bytes: &[u8]) -> &str {
    core::str::from_utf8(bytes).unwrap_or_default()
}

fn network(bytes: &[u8]) -> Result<Option<([u8; 16], u32)>, &'static str> {
    const WRONG: &str = "an address is `*`, one of IPv4 or one of IPv6 in brackets, perhaps with /PREFIX";
    if bytes == b"*" {
        return Ok(None);
    }
    let mut parts = bytes.splitn(2, |byte| *byte == b'/');
    let (address, prefix) = (text(parts.next().unwrap_or_default()), parts.next());
    let prefix = match prefix {
        None => None,
        Some(prefix) => Some(text(prefix).parse::<u32>().map_err(|_| WRONG)?),
    };
    if let Ok(v4) = address.parse::<core::net::Ipv4Addr>() {
        let prefix = prefix.unwrap_or(32);
        return if prefix <= 32 { Ok(Some((v4.to_ipv6_mapped().octets(), 96 + prefix))) } else { Err(WRONG) };
    }
    let inner = address.strip_prefix('[').and_then(|address| address.strip_suffix(']')).unwrap_or(address);
    let v6: core::net::Ipv6Addr = inner.parse().map_err(|_| WRONG)?;
    let prefix = prefix.unwrap_or(128);
    if prefix <= 128 { Ok(Some((v6.octets(), prefix))) } else { Err(WRONG) }
}

fn range(bytes: &[u8]) -> Result<(u16, u16), &'static str> {
    const WRONG: &str = "a port is `*`, a number, or two with `-` between them";
    if bytes == b"*" {
        return Ok((0, u16::MAX));
    }
    let mut parts = text(bytes).splitn(2, '-');
    let number = |text: &str| text.parse::<u16>().map_err(|_| WRONG);
    let first = number(parts.next().unwrap_or_default())?;
    let last = parts.next().map_or(Ok(first), number)?;
    if first <= last { Ok((first, last)) } else { Err(WRONG) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    fn at(ip: [u8; 4], port: u16) -> Address {
        Address::v4(ip, port)
    }

    #[test]
    fn the_first_rule_that_fits_counts() {
        let text = b"# of nginx\n\
            log min-level 9 destination syslog\n\
            use tcp client nginx 10.1.0.0/16:80-90   # but not others\n\
            use sdp client nginx 10.0.0.0/8:*\n\
            use both server * [fe80::]/16:*\n\
            use tcp server * *:22\n\
            use tcp\tclient  * *:*\n";
        assert_eq!(check(text), Ok(()));
        let client = |program: &str, ip, port| decide(text, Role::Client, program.as_bytes(), &at(ip, port));
        assert_eq!(client("nginx", [10, 1, 2, 3], 80), Use::Tcp);
        assert_eq!(client("nginx", [10, 1, 2, 3], 91), Use::Sdp);
        assert_eq!(client("nginx", [10, 2, 2, 3], 80), Use::Sdp);
        assert_eq!(client("nginx", [11, 1, 2, 3], 80), Use::Tcp);
        assert_eq!(client("redis", [10, 2, 2, 3], 80), Use::Tcp);
        let server = |port| decide(text, Role::Server, b"x", &at([127, 0, 0, 1], port));
        assert_eq!([server(22), server(23)], [Use::Tcp, Use::Both]);
        assert_eq!(decide(b"", Role::Client, b"x", &at([1; 4], 1)), Use::Both);
    }

    #[test]
    fn a_line_that_is_none_is_said_and_passed_over() {
        for line in [
            "used",
            "use",
            "use udp client * *:*",
            "use tcp peer * *:*",
            "use tcp client",
            "use tcp client *",
            "use tcp client * *",
            "use tcp client * *:x",
            "use tcp client * *:9-8",
            "use tcp client * *:70000",
            "use tcp client * 10.0.0.0/33:*",
            "use tcp client * 10.0.0:*",
            "use tcp client * [::1]/129:*",
            "use tcp client * *:* more",
        ] {
            let text = format!("\n{line}\nuse tcp client * *:*");
            let wrong = check(text.as_bytes()).unwrap_err();
            assert_eq!(wrong.line, 2, "{line}");
            assert_eq!(decide(text.as_bytes(), Role::Client, b"x", &at([1; 4], 1)), Use::Tcp);
        }
        assert_eq!(check(b"\xff"), Err(BadRule { line: 1, what: "a line begins with `use` or `log`" }));
    }
}
