//! Answers the requests to an owner, and decides who may attach, change and see which port.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;

use tombolo_control::question;
use tombolo_core::nic::connection::Rank;
use tombolo_core::nic::registers::MacState;
use tombolo_core::nic::{self, Coalescing, Mac, Mode, PortConfig, PortId, Refusal, Rules, Share, Turns};
use tombolo_host::net::BUFFER_BYTES as SOCKET_BYTES;
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::unix::PeerIdentity;
use tombolo_node::harmless_reason;
use tombolo_node::identity::{KeyPair, PublicKey};

use crate::allowance::{Listed, Whom, claims_nothing, given_mac};
use crate::far::RING_BYTES;
use crate::frames::End;
use crate::protocol::{
    Answer, Ask, Changes, Counters, Driver, PORTS_AT_ONCE, Port, PortStatus, Register, Traffic, UPLINK,
    UplinkStatus, VERSION, Vlans,
};
use crate::refusals::Refusals;
use crate::worker::{Handle, Worker};

/// The most ports of an owner.
pub const PORTS_MAX: usize = 1024;
/// The longest name of a port.
const NAME_BYTES_MAX: usize = 64;
/// The longest name of a device or namespace.
const TEXT_BYTES_MAX: usize = 256;
/// The most addresses or groups of a port.
const LIST_MAX: usize = 64;
/// The longest segment that a port may send if the uplink's rate sets no lower limit.
pub const SEGMENT_BYTES_MAX: u32 = 65_536;
/// The largest MTU.
const MTU_MAX: u32 = 9000;
/// The smallest MTU, which IPv4 needs (RFC 791).
const MTU_MIN: u32 = 68;

/// The sender of a request.
#[derive(Debug)]
pub enum Asker {
    /// A process of this machine, with the descriptors that it passes.
    Near(PeerIdentity, Vec<PassedDescriptor>),
    /// A port of another node. The number of the connection is the key of its pipes.
    Far {
        /// That node's name.
        node: String,
        /// The key that the node has proved.
        key: Option<PublicKey>,
    },
}

impl fmt::Display for Asker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Near(peer, _) => Whom::User(peer.user_id).fmt(formatter),
            Self::Far { key: Some(key), .. } => key.fmt(formatter),
            Self::Far { node, key: None } => formatter.write_str(node),
        }
    }
}

/// An asker that is neither the owner's user nor root.
#[derive(Clone, Copy)]
enum Stranger {
    /// The kernel or a key identifies the asker.
    Known(Whom),
    /// Nothing identifies the asker.
    Unknown,
}

/// A port that is attached.
struct Attached {
    port: Port,
    id: PortId,
    peer: Option<PeerIdentity>,
    node: Option<String>,
    way: Way,
    connection: u64,
}

/// How frames come from a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By the queues of its TAP device.
    Tap,
    /// By a packet socket of its interface, or of the device behind which a virtual machine is.
    Sockets,
    /// By pipes from another node.
    Pipes,
}

/// The ports of an owner, by name, and the thread that moves their frames.
pub struct Control {
    ports: BTreeMap<String, Attached>,
    worker: Handle,
    own_user: u32,
    has_carrier: bool,
    mtu: u32,
    /// The uplink has changed, and ports are to be told.
    has_news: bool,
    /// Changes of ports that the ports are to be told, by connection.
    changed: Vec<(u64, Changes)>,
    /// Coalescing of frames to ports of other machines.
    coalescing: Coalescing,
    /// The file that says what ports have, and who may attach them.
    allowances: Option<Listed>,
    /// The guarantees of ports exceed the uplink's rate, and a warning was logged.
    is_overbooked: bool,
    /// Why the file of ports could not be read the last time.
    file_trouble: Option<String>,
    /// The keys from which the owner derives hardware addresses of ports.
    keys: KeyPair,
    refusals: Refusals,
}

/// Converts bits a second to bytes a second.
fn bytes_of(bits: u64) -> u64 {
    bits / 8
}

/// Checks that a port can have this name.
fn check_name(name: &str) -> Result<(), String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@:".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_name) {
        let begin: String = name.chars().take(NAME_BYTES_MAX).collect();
        return Err(format!(
            "`{begin}` is no name of a port: letters, digits and -_.@: up to {NAME_BYTES_MAX}"
        ));
    }
    Ok(())
}

/// The configuration of a port for the thread that moves frames.
///
/// # Errors
/// A port cannot have these properties. The text says why.
pub(crate) fn config_of(port: &Port) -> Result<PortConfig, String> {
    check_name(&port.name)?;
    if port.name == UPLINK {
        return Err(format!("a port cannot be called {UPLINK}: choose a name with --name"));
    }
    let is_plain = |text: &str| text.len() <= TEXT_BYTES_MAX && harmless_reason(text) == text;
    if !is_plain(&port.tap) || !port.namespace.as_deref().is_none_or(is_plain) {
        return Err(format!(
            "the names of device and namespace are plain text, up to {TEXT_BYTES_MAX} bytes"
        ));
    }
    let count = |length: Option<usize>| length.unwrap_or(0);
    let addresses = count(port.addresses.as_ref().map(BTreeSet::len));
    if addresses.max(count(port.groups.as_ref().map(BTreeSet::len))) > LIST_MAX {
        return Err(format!("a port has at most {LIST_MAX} addresses and groups"));
    }
    if !(MTU_MIN..=MTU_MAX).contains(&port.mtu) {
        return Err(format!("an MTU of {} is not between {MTU_MIN} and {MTU_MAX}", port.mtu));
    }
    if port.weight == 0 || port.weight > 1000 {
        return Err(format!("a weight of {} is not between 1 and 1000", port.weight));
    }
    let mac: Mac = port.mac.parse().map_err(|error: nic::NoMac| error.to_string())?;
    let groups = port.groups.as_ref().map(|groups| groups.iter().map(|group| group.parse()).collect());
    let groups = groups.transpose().map_err(|error: nic::NoMac| error.to_string())?;
    let vlans = match &port.vlans {
        Vlans::Untagged => nic::Vlans::Access(0),
        Vlans::Access(vlan) => nic::Vlans::Access(*vlan),
        Vlans::Trunk(all) => nic::Vlans::Trunk(all.clone()),
    };
    let rules = Rules {
        vlans,
        addresses: port.addresses.clone(),
        is_promiscuous: port.is_promiscuous,
        groups,
        ..Rules::new(mac)
    };
    let share = Share {
        weight: port.weight,
        guaranteed: bytes_of(port.guaranteed_bits),
        most: Some(bytes_of(port.rate_bits)).filter(|rate| *rate > 0),
    };
    Ok(PortConfig { rules, share, mtu: port.mtu })
}

impl Control {
    /// An owner without ports.
    pub fn new(
        worker: Handle,
        has_carrier: bool,
        mtu: u32,
        coalescing: Coalescing,
        allowances: Option<Listed>,
        keys: KeyPair,
    ) -> Self {
        let own_user = rustix::process::geteuid().as_raw();
        Self {
            ports: BTreeMap::new(),
            worker,
            own_user,
            has_carrier,
            mtu,
            has_news: false,
            changed: Vec::new(),
            coalescing,
            allowances,
            is_overbooked: false,
            file_trouble: None,
            keys,
            refusals: Refusals::default(),
        }
    }

    /// The rank of a process's user.
    pub fn rank(&mut self, peer: PeerIdentity) -> Rank {
        if self.is_owner(peer) {
            return Rank::Owner;
        }
        let Some(listed) = &mut self.allowances else { return Rank::Unlisted };
        let found = listed.now().map(|all| all.include(Whom::User(peer.user_id)));
        let trouble = found.as_ref().err().cloned();
        if let Some(reason) = trouble.as_ref().filter(|_| trouble != self.file_trouble) {
            tracing::warn!(reason, "the file of ports lets in no other user until it can be read");
        }
        self.file_trouble = trouble;
        if found == Ok(true) { Rank::Listed } else { Rank::Unlisted }
    }

    /// Answers a request that came by `connection`.
    pub fn answer(&mut self, connection: u64, asker: Asker, message: &[u8]) -> Answer {
        let answered = question(message, VERSION).and_then(|ask| self.answer_ask(connection, asker, ask));
        answered.unwrap_or_else(Answer::Refused)
    }

    fn answer_ask(&mut self, connection: u64, asker: Asker, ask: Ask) -> Result<Answer, String> {
        if self.stranger(&asker).is_some() && !matches!(ask, Ask::Attach(_)) {
            return Err("only the uplink's owner asks and changes: others attach ports".into());
        }
        match ask {
            Ask::Attach(port) => {
                let (name, by) = (port.name.clone(), asker.to_string());
                let attached = self.attach(connection, asker, port);
                attached.inspect_err(|reason| self.refusals.say(&name, &by, reason))
            }
            Ask::List { after } => self.list(after),
            Ask::Show(name) => self.show(&name),
            Ask::ShowUplink => self.show_uplink(),
            Ask::Set { port, changes } => self.set(&port, changes),
            Ask::SetUplink { rate_bits } => self.set_uplink(rate_bits),
        }
    }

    /// Logs that a node is not let in as a port.
    pub fn say_refused(&mut self, by: &str, reason: &str) {
        self.refusals.say("", by, reason);
    }

    fn attached(&self, mac: String) -> Result<Answer, String> {
        let limits = self.call(|worker| *worker.exchange.limits())?;
        let segment_bytes_max = u32::try_from(limits.segment_bytes()).unwrap_or(SEGMENT_BYTES_MAX);
        let has_carrier = self.has_carrier;
        Ok(Answer::Attached { has_carrier, segment_bytes_max, mtu: limits.mtu, mac })
    }

    /// Logs a warning when the guarantees of ports begin to exceed the uplink's rate.
    fn check_guarantees(&mut self) {
        let Ok(Some(rate)) = self.call(|worker| worker.exchange.limits().rate) else {
            self.is_overbooked = false;
            return;
        };
        let bits = |attached: &Attached| u128::from(attached.port.guaranteed_bits);
        let (guaranteed, has) = (self.ports.values().map(bits).sum::<u128>(), u128::from(rate) * 8);
        let was_overbooked = std::mem::replace(&mut self.is_overbooked, guaranteed > has);
        if self.is_overbooked && !was_overbooked {
            tracing::warn!(
                "ports have guarantees of {guaranteed} bits a second together, and the uplink sends {has}: while they \
                 use them, some get less than that, or nothing, and other ports get nothing"
            );
        }
    }

    /// Calls a function in the thread that moves frames, and waits for its result.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn call<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Worker) -> T + Send + 'static,
    ) -> Result<T, String> {
        self.worker.call(what).ok_or_else(|| "the owner is ending".into())
    }

    /// The asker as a stranger. `None`: it is of the owner's user or of root.
    fn stranger(&self, asker: &Asker) -> Option<Stranger> {
        match asker {
            Asker::Near(peer, _) if self.is_owner(*peer) => None,
            Asker::Near(peer, _) => Some(Stranger::Known(Whom::User(peer.user_id))),
            Asker::Far { key: Some(key), .. } => Some(Stranger::Known(Whom::Key(*key))),
            Asker::Far { key: None, .. } => Some(Stranger::Unknown),
        }
    }

    /// The port that an asker may attach, with the properties and the hardware address that it is to have.
    fn allowed(&mut self, asker: &Asker, port: Port) -> Result<Port, String> {
        let stranger = self.stranger(asker);
        let whom = match stranger {
            Some(Stranger::Known(whom)) => Some(whom),
            Some(Stranger::Unknown) | None => None,
        };
        check_name(&port.name)?;
        let mut all = None;
        let mut port = match (&mut self.allowances, stranger) {
            (None, None) => port,
            (None, Some(_)) => {
                claims_nothing(&port)?;
                if !port.mac.is_empty() {
                    return Err(format!(
                        "the owner gives ports of other machines their hardware addresses: leave --mac out, or have the owner write \
                         {} with from= and mac= into its file of ports (--ports)",
                        port.name
                    ));
                }
                port
            }
            (Some(_), Some(Stranger::Unknown)) => {
                return Err(
                    "the file of ports lets in those that it names, and without keys nobody can be told"
                        .into(),
                );
            }
            (Some(listed), _) => all.insert(listed.now()?).apply(port, whom)?,
        };
        if port.mac.is_empty() {
            let is_taken = |mac: &Mac| {
                let mut others = self.ports.values().filter(|other| other.port.name != port.name);
                all.is_some_and(|all| all.has_mac(*mac))
                    || others.any(|other| other.port.mac.parse() == Ok(*mac))
            };
            let whom = match &stranger {
                None => "owner".to_owned(),
                Some(Stranger::Unknown) => "unknown".to_owned(),
                Some(Stranger::Known(whom)) => whom.to_string(),
            };
            let all = (0..=PORTS_MAX as u32).map(|before| given_mac(&self.keys, &whom, &port.name, before));
            let mac = all.into_iter().find(|mac| !is_taken(mac)).ok_or("no address is left")?;
            port.mac = mac.to_string();
        }
        Ok(port)
    }

    fn attach(&mut self, connection: u64, asker: Asker, port: Port) -> Result<Answer, String> {
        let is_stranger = self.stranger(&asker).is_some();
        let port = self.allowed(&asker, port)?;
        let config = config_of(&port)?;
        if self.ports.values().any(|attached| attached.connection == connection) {
            return Err("this connection has attached a port already".into());
        }
        if self.ports.contains_key(&port.name) {
            let reason = format!("another port is called {}: choose a name with --name", port.name);
            return Ok(Answer::NameTaken(reason));
        }
        let mut ends = Vec::new();
        let (peer, node) = match asker {
            Asker::Near(peer, descriptors) => {
                ends = descriptors.into_iter().map(End::of).collect::<Option<Vec<_>>>().unwrap_or_default();
                if ends.is_empty() {
                    return Err(
                        "what came with the request are no queues of a TAP device with offload headers, \
                                nor packet sockets with them"
                            .into(),
                    );
                }
                // The process that passed a packet socket can give it a ring of frames to send (PACKET_TX_RING), and fill
                // the ring as fast as the kernel empties it: a send would not end.
                if is_stranger && ends.iter().any(|end| matches!(end, End::Socket(_))) {
                    return Err("only the uplink's owner attaches interfaces and virtual machines".into());
                }
                (Some(peer), None)
            }
            Asker::Far { node, .. } => (None, Some(node)),
        };
        let taken = |number: &u16| self.ports.values().any(|attached| attached.id.0 == *number);
        let free = (0..PORTS_MAX as u16).find(|number| !taken(number));
        let id = PortId(free.ok_or_else(|| format!("there are {PORTS_MAX} ports already"))?);
        let way = match ends.first() {
            None => Way::Pipes,
            Some(End::Queue(_)) => Way::Tap,
            Some(End::Socket(_)) => Way::Sockets,
        };
        let other_user = peer.filter(|_| is_stranger).map(|peer| peer.user_id);
        self.call(move |worker| {
            let now_ns = worker.now_ns();
            worker.exchange.set(now_ns, id, config).map_err(|error| error.to_string())?;
            if way == Way::Pipes {
                worker.add_pipes(id, connection);
                return Ok(());
            }
            worker.add(id, ends, other_user).map_err(|error| {
                worker.remove(id);
                format!("cannot watch the queues: {error}")
            })
        })??;
        let process = peer.and_then(|peer| peer.process_id);
        tracing::info!(port = port.name, mac = port.mac, process, node, "port attached");
        let mac = port.mac.clone();
        self.ports.insert(port.name.clone(), Attached { port, id, peer, node, way, connection });
        self.check_guarantees();
        self.attached(mac)
    }

    /// Removes the port of a connection that has ended.
    pub fn hung_up(&mut self, connection: u64) {
        let found = self.ports.values().find(|attached| attached.connection == connection);
        let Some(name) = found.map(|attached| attached.port.name.clone()) else { return };
        if let Some(attached) = self.ports.remove(&name) {
            tracing::info!(port = name, "port gone");
            let _ = self.call(move |worker| worker.remove(attached.id));
            self.worker.forget_gone(attached.id);
            self.check_guarantees();
        }
    }

    /// The thread that moves frames.
    pub fn worker(&self) -> &Handle {
        &self.worker
    }

    /// Whether the thread that moves frames has ended.
    pub fn is_of_no_use(&self) -> bool {
        self.worker.is_of_no_use()
    }

    /// The connections of ports whose devices were found gone since the last call.
    pub fn take_gone(&self) -> Vec<u64> {
        let gone = self.worker.take_gone();
        self.ports
            .values()
            .filter(|attached| gone.contains(&attached.id))
            .map(|attached| attached.connection)
            .collect()
    }

    /// The connections that have ports.
    pub fn connections(&self) -> impl Iterator<Item = u64> {
        self.ports.values().map(|attached| attached.connection)
    }

    /// Records whether the uplink has a carrier, and its MTU. If either has changed, ports are to be told.
    pub fn set_uplink_state(&mut self, has_carrier: bool, mtu: u32) {
        if std::mem::replace(&mut self.mtu, mtu) != mtu {
            let _ = self.call(move |worker| worker.exchange.set_mtu(mtu));
            self.has_news = true;
        }
        if std::mem::replace(&mut self.has_carrier, has_carrier) != has_carrier {
            tracing::info!(has_carrier, "the uplink's carrier has changed");
            self.has_news = true;
        }
    }

    /// Records that the uplink is gone: it has no carrier.
    pub fn lose_carrier(&mut self) {
        self.set_uplink_state(false, self.mtu);
    }

    /// The answer by which ports are to be told of the uplink, if it has changed since the last call.
    pub fn take_news(&mut self) -> Option<Answer> {
        std::mem::take(&mut self.has_news).then(|| self.attached(String::new()).ok()).flatten()
    }

    /// The answers by which ports are to be told of their changes since the last call, by connection.
    pub fn take_changed(&mut self) -> Vec<(u64, Answer)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|(to, changes)| (to, Answer::Changed(Box::new(changes)))).collect()
    }

    fn find(&self, name: &str) -> Result<&Attached, String> {
        self.ports.get(name).ok_or_else(|| match self.ports.len() {
            0 => format!("there is no port {name}: none is attached"),
            _ => {
                let some: Vec<_> = self.ports.keys().take(20).map(String::as_str).collect();
                let more = if self.ports.len() > some.len() { ", ..." } else { "" };
                format!("there is no port {name}, but {}{more}", some.join(", "))
            }
        })
    }

    fn show(&self, name: &str) -> Result<Answer, String> {
        let mut found = self.statuses(&[self.find(name)?])?;
        found.pop().map(|status| Answer::Port(Box::new(status))).ok_or_else(|| "the port has gone".into())
    }

    fn list(&self, after: Option<String>) -> Result<Answer, String> {
        let first = after.map_or(Bound::Unbounded, Bound::Excluded);
        let some = self.ports.range((first, Bound::Unbounded)).take(PORTS_AT_ONCE);
        Ok(Answer::Ports(self.statuses(&some.map(|(_, attached)| attached).collect::<Vec<_>>())?))
    }

    /// The states of these ports, all at the same moment.
    fn statuses(&self, all: &[&Attached]) -> Result<Vec<PortStatus>, String> {
        let ids: Vec<PortId> = all.iter().map(|attached| attached.id).collect();
        let found = self.call(move |worker| {
            worker.count_overflows();
            let of = |id: &PortId| {
                let counters = worker.exchange.counters(*id).copied().unwrap_or_default();
                let is_written_aside = worker.is_written_aside(*id);
                (worker.queues(*id), worker.exchange.is_waiting(*id), is_written_aside, counters)
            };
            ids.iter().map(of).collect::<Vec<_>>()
        })?;
        let statuses = all.iter().zip(found).map(|(attached, found)| PortStatus {
            port: attached.port.clone(),
            driver: self.driver_of(attached),
            queues: found.0,
            is_waiting: found.1,
            is_written_aside: found.2,
            process: attached.peer.and_then(|peer| peer.process_id),
            user: attached.peer.map(|peer| peer.user_id),
            node: attached.node.clone(),
            counters: counters_of(&found.3),
        });
        Ok(statuses.collect())
    }

    fn driver_of(&self, attached: &Attached) -> Driver {
        let Coalescing { frames, after_ns, is_adaptive } = self.coalescing;
        let (rings, coalescing) = match attached.way {
            Way::Pipes => {
                let adaptive = if is_adaptive { ", adaptive" } else { "" };
                let coalescing = match frames {
                    1 => "rx-frames 1".to_owned(),
                    _ => format!("rx-frames {frames}, rx-usecs {}{adaptive}", after_ns / 1000),
                };
                (format!("{RING_BYTES} bytes each way"), coalescing)
            }
            Way::Tap => ("the queue of the device (txqueuelen)".to_owned(), "by the kernel".to_owned()),
            Way::Sockets => (
                format!("{SOCKET_BYTES} bytes each way of a packet socket"),
                "by the interface's own driver".to_owned(),
            ),
        };
        let offloads =
            ["tx-checksumming", "rx-checksumming", "tcp-segmentation-offload", "tx-udp-segmentation"];
        Driver {
            link_detected: self.has_carrier,
            rings,
            coalescing,
            offloads: offloads.map(str::to_owned).to_vec(),
        }
    }

    fn show_uplink(&self) -> Result<Answer, String> {
        let has_carrier = self.has_carrier;
        let status = self.call(move |worker| {
            worker.count_overflows();
            let limits = worker.exchange.limits();
            let number = |text: &str| text.parse().unwrap_or(0);
            let state = MacState {
                address: Mac(worker.uplink.interface().mac().unwrap_or_default()),
                mtu: limits.mtu,
                has_carrier,
                version: [
                    number(env!("CARGO_PKG_VERSION_MAJOR")),
                    number(env!("CARGO_PKG_VERSION_MINOR")),
                    number(env!("CARGO_PKG_VERSION_PATCH")),
                ],
            };
            let registers = state.registers().map(|nic::registers::Register { name, value, meaning }| {
                Register { name: name.to_owned(), value, meaning }
            });
            UplinkStatus {
                process_id: std::process::id(),
                registers: registers.to_vec(),
                interface: worker.uplink.interface().name().to_owned(),
                kind: worker.uplink.kind().to_owned(),
                mtu: limits.mtu,
                has_carrier,
                rate_bits: limits.rate.unwrap_or(0).saturating_mul(8),
                scheduler: if limits.turns == Turns::Frames { "rr".into() } else { "drr".into() },
                mode: if worker.exchange.mode() == Mode::Bridge { "bridge".into() } else { "private".into() },
                counters: counters_of(worker.exchange.uplink_counters()),
            }
        })?;
        Ok(Answer::Uplink(Box::new(status)))
    }

    /// Whether a process is of the owner's user, or of root.
    pub fn is_owner(&self, peer: PeerIdentity) -> bool {
        peer.user_id == self.own_user || peer.user_id == 0
    }

    fn set(&mut self, name: &str, changes: Changes) -> Result<Answer, String> {
        let attached = self.find(name)?;
        let mut port = attached.port.clone();
        changes.clone().apply(&mut port);
        let (config, id) = (config_of(&port)?, attached.id);
        self.call(move |worker| {
            let now_ns = worker.now_ns();
            worker.exchange.set(now_ns, id, config).map_err(|error| error.to_string())
        })??;
        let own_user = self.own_user;
        if let Some(attached) = self.ports.get_mut(name) {
            attached.port = port;
            // Other users' ports are not told, since they may not ask for these changes when they are attached again.
            // Their lasting properties stand in the file of ports.
            if attached.peer.is_some_and(|peer| peer.user_id == own_user || peer.user_id == 0) {
                self.changed.push((attached.connection, changes));
            }
        }
        self.check_guarantees();
        Ok(Answer::Done)
    }

    fn set_uplink(&mut self, rate_bits: Option<u64>) -> Result<Answer, String> {
        if let Some(bits) = rate_bits {
            let rate = Some(bytes_of(bits)).filter(|rate| *rate > 0);
            self.call(move |worker| {
                let now_ns = worker.now_ns();
                worker.exchange.shape(now_ns, rate);
            })?;
            self.has_news = true;
            self.check_guarantees();
        }
        Ok(Answer::Done)
    }
}

fn traffic_of(traffic: &nic::Traffic) -> Traffic {
    let nic::Traffic { frames, bytes, segments, by_size, broadcasts, multicasts } = *traffic;
    Traffic { frames, bytes, segments, by_size, broadcasts, multicasts }
}

fn counters_of(counters: &nic::Counters) -> Counters {
    let refused =
        Refusal::ALL.iter().map(|refusal| (refusal.name().to_owned(), counters.refused_for(*refusal)));
    Counters {
        sent: traffic_of(&counters.sent),
        received: traffic_of(&counters.received),
        refused: refused.collect(),
        undelivered: counters.undelivered,
        overflowed: counters.overflowed,
    }
}
