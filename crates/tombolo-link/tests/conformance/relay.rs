//! A network between a connector and a listener that loses, repeats, changes or is cut.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::harness::{PATIENCE, accept, loopback};
use tombolo_link::testing::{LinkPair, Random};
use tombolo_link::{Address, Listener, Security};

pub fn socket_address(address: &Address) -> SocketAddr {
    let Address::Udp(address) = address else { panic!("not udp") };
    *address
}

/// What becomes of a datagram to the listener (true) or from it: what arrives in its place.
pub type Route = Box<dyn FnMut(bool, &[u8]) -> Vec<Vec<u8>> + Send>;

#[derive(Clone, Copy)]
pub struct Impairment {
    pub loss_per_mille: u32,
    pub duplication_per_mille: u32,
}

impl Impairment {
    pub const GOOD: Self = Self { loss_per_mille: 0, duplication_per_mille: 0 };

    pub fn route(self) -> Route {
        let mut random = Random::for_test(9);
        Box::new(move |_, datagram| {
            if random.per_mille(self.loss_per_mille) {
                return Vec::new();
            }
            vec![datagram.to_vec(); 1 + usize::from(random.per_mille(self.duplication_per_mille))]
        })
    }
}

pub struct Relay {
    pub listener: Box<dyn Listener>,
    /// Where to connect to.
    pub front: SocketAddr,
    cut: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Relay {
    pub fn new(security: &Security, route: Route) -> Self {
        let listener = tombolo_link::listen(&loopback(), security).unwrap();
        let back_address = socket_address(&listener.address());
        let front = UdpSocket::bind("127.0.0.1:0").unwrap();
        let front_address = front.local_addr().unwrap();
        let (cut, stop) = (<Arc<AtomicBool>>::default(), <Arc<AtomicBool>>::default());
        let thread = {
            let (cut, stop) = (cut.clone(), stop.clone());
            std::thread::spawn(move || relay(&front, back_address, route, &cut, &stop))
        };
        Self { listener, front: front_address, cut, stop, thread: Some(thread) }
    }

    /// The accepted end first.
    pub fn connect(&self, security: &Security) -> LinkPair {
        let accepted = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let connector = scope.spawn(|| {
                let link = tombolo_link::connect(&Address::Udp(self.front), security, PATIENCE).unwrap();
                // As a node does: if its first ping is lost, the keep-alive asks again.
                while !accepted.load(Ordering::Relaxed) {
                    link.wait(Duration::from_millis(5)).unwrap();
                    link.receive(16, &mut |_| {}).unwrap();
                }
                link
            });
            let link = accept(&*self.listener);
            accepted.store(true, Ordering::Relaxed);
            while !connector.is_finished() {
                // Its acceptance may have been lost.
                link.receive(16, &mut |_| {}).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
            (link, connector.join().unwrap())
        })
    }

    pub fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    pub fn heal(&self) {
        self.cut.store(false, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn relay(front: &UdpSocket, back_address: SocketAddr, mut route: Route, cut: &AtomicBool, stop: &AtomicBool) {
    let back = UdpSocket::bind("127.0.0.1:0").unwrap();
    front.set_nonblocking(true).unwrap();
    back.set_nonblocking(true).unwrap();
    let mut client = None;
    let mut buffer = vec![0; 65_536];
    while !stop.load(Ordering::Relaxed) {
        let mut idle = true;
        for forward in [true, false] {
            let received = if forward { front.recv_from(&mut buffer) } else { back.recv_from(&mut buffer) };
            let Ok((bytes, from)) = received else {
                continue;
            };
            idle = false;
            if forward {
                client = Some(from);
            }
            if cut.load(Ordering::Relaxed) {
                continue;
            }
            for datagram in route(forward, &buffer[..bytes]) {
                let _ = match (forward, client) {
                    (true, _) => back.send_to(&datagram, back_address),
                    (false, Some(client)) => front.send_to(&datagram, client),
                    (false, None) => Ok(0),
                };
            }
        }
        if idle {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}
