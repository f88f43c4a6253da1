//! The server that scrapes ask.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use tombolo_host::timing::command as timing;

use crate::failure::Failure;

/// The longest head of a request.
const HEAD_BYTES: usize = 8192;

/// Serves what `text` gives, at this address, as long as the process lives. Returns where that is.
///
/// One client at a time, for a bounded time, of whom a bounded number of bytes is read: whoever reaches the address must
/// not be able to harm the process that it belongs to.
pub fn serve(address: SocketAddr, text: impl Fn() -> String + Send + 'static) -> Result<SocketAddr, Failure> {
    let failed = |error: io::Error| Failure::new(format!("cannot serve metrics at {address}: {error}"));
    let listener = TcpListener::bind(address).map_err(failed)?;
    let at = listener.local_addr().map_err(failed)?;
    let serving = std::thread::Builder::new().name("metrics".into()).spawn(move || {
        for stream in listener.incoming() {
            match stream {
                // Whoever asked has gone, if it does not get the answer.
                Ok(stream) => drop(answer(&stream, &text)),
                // No descriptor is left, for instance.
                Err(_) => std::thread::sleep(timing::CLIENT_ERROR_PAUSE),
            }
        }
    });
    serving.map_err(failed)?;
    Ok(at)
}

/// Reads the head of a request and answers it. What follows the head is not read.
fn answer(stream: &TcpStream, text: &impl Fn() -> String) -> io::Result<()> {
    let deadline = Instant::now() + timing::CLIENT_TIMEOUT;
    let head = read_head(stream, deadline)?;
    let request = head.lines().next().unwrap_or_default();
    let words: Vec<&str> = request.split_whitespace().collect();
    let (status, kind, body) = match words.as_slice() {
        ["GET", "/metrics", _] => {
            ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text())
        }
        ["GET", ..] => ("404 Not Found", "text/plain", "/metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "GET\n".to_owned()),
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    send(stream, answer.as_bytes(), Instant::now() + timing::CLIENT_TIMEOUT)
}

/// The time that is left.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Reads up to the empty line after the head of a request.
fn read_head(mut stream: &TcpStream, deadline: Instant) -> io::Result<String> {
    let (mut head, mut piece) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        if head.len() > HEAD_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => head.extend_from_slice(&piece[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn send(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        let count = stream.write(bytes)?;
        bytes = &bytes[count..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_any_kind_are_answered_or_left() {
        let at = serve("127.0.0.1:0".parse().unwrap(), || "x".repeat(1 << 20)).unwrap();
        let ask = |request: &str| {
            let mut stream = TcpStream::connect(at).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            // It may be closed before all of it is sent.
            let _ = stream.write_all(request.as_bytes());
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            String::from_utf8_lossy(&answer).into_owned()
        };
        // Those that say nothing, and one that does not read.
        let _idle: Vec<_> = (0..2).map(|_| TcpStream::connect(at).unwrap()).collect();
        let mut deaf = TcpStream::connect(at).unwrap();
        deaf.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let huge = "GET /metrics HTTP/1.1\r\nContent-Length: 1000000000000000\r\n\r\n";
        assert!(ask(huge).starts_with("HTTP/1.1 200"));
        ask(&"endless".repeat(10_000));
        assert!(ask("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        let whole = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(whole.ends_with("xxx") && whole.len() > 1 << 20);
    }
}
