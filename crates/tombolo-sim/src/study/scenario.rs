//! Scenarios: their files, and whether they can be run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::StudyError;
use crate::parts::Topology;
use crate::platform::{PLATFORMS, Platform, Unit};

/// A scenario, as its file has it, and with what was set besides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The name of a platform.
    pub platform: String,
    /// What random numbers are drawn from.
    #[serde(default = "one")]
    pub seed: u64,
    /// Other values of the platform's constants, in their units.
    #[serde(default)]
    pub constants: BTreeMap<String, f64>,
    /// Who is connected to whom.
    #[serde(default)]
    pub topology: Option<TopologyKind>,
    /// What nodes do.
    #[serde(default)]
    pub workload: Option<Workload>,
    /// How engines go about it, with a topology.
    #[serde(default)]
    pub engine: EngineKind,
    /// What links do wrong, each to so many packets of a million.
    #[serde(default)]
    pub faults: Faults,
    /// Absent pages, with a topology.
    #[serde(default)]
    pub pages: Option<Pages>,
    /// Nodes that share an interface.
    #[serde(default)]
    pub interface: Option<Interface>,
}

/// Scenarios that come with the simulator: their names and files.
pub const EXAMPLES: [(&str, &str); 7] = [
    ("checksum", include_str!("examples/checksum.toml")),
    ("classes", include_str!("examples/classes.toml")),
    ("links", include_str!("examples/links.toml")),
    ("livelock", include_str!("examples/livelock.toml")),
    ("timeout", include_str!("examples/timeout.toml")),
    ("touch-ahead", include_str!("examples/touch-ahead.toml")),
    ("window", include_str!("examples/window.toml")),
];

/// Who is connected to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologyKind {
    /// Its shape.
    pub kind: Shape,
    /// Nodes: of `full` and `ring`.
    #[serde(default)]
    pub nodes: u32,
    /// Nodes in a row: of `mesh` and `torus`.
    #[serde(default)]
    pub width: u32,
    /// Rows.
    #[serde(default)]
    pub height: u32,
    /// Ports of a switch: of `fat-tree`.
    #[serde(default)]
    pub ports: u32,
    /// Boards of four: of `quad-boards`.
    #[serde(default)]
    pub boards: u32,
    /// Links between neighbours.
    #[serde(default = "one_link")]
    pub links: u8,
    /// What waits before a link at most, in KiB, the packet that is being sent included; more is lost. Without it, everything waits.
    #[serde(default)]
    pub queue_kib: Option<u32>,
}

/// A shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// Each node to each other one.
    Full,
    /// Each to the next.
    Ring,
    /// A rectangle.
    Mesh,
    /// A rectangle whose borders are joined.
    Torus,
    /// Three levels of switches.
    FatTree,
    /// Boards of four.
    QuadBoards,
}

/// Nodes of a topology at most: each reaches each other one by a way of its own.
const MOST_NODES: u32 = 256;

impl TopologyKind {
    /// The topology.
    ///
    /// # Errors
    /// [`StudyError::Impossible`]: it has fewer than two nodes, or too many.
    pub fn topology(self) -> Result<Topology, StudyError> {
        let Self { kind, nodes, width, height, ports, boards, .. } = self;
        let sizes = [nodes, width, height, ports, boards];
        if sizes.iter().any(|size| *size > MOST_NODES) {
            return Err(StudyError::Impossible(format!("a topology has {MOST_NODES} nodes at most")));
        }
        let topology = match kind {
            Shape::Full => Topology::Full { nodes },
            Shape::Ring => Topology::Ring { nodes },
            Shape::Mesh => Topology::Mesh { width, height },
            Shape::Torus => Topology::Torus { width, height },
            Shape::FatTree if ports % 2 == 1 => {
                return Err(StudyError::Impossible("topology.ports of a fat tree is an even number".into()));
            }
            Shape::FatTree => Topology::FatTree { ports },
            Shape::QuadBoards => Topology::QuadBoards { boards },
        };
        match topology.nodes() {
            0 | 1 => {
                let keys = match kind {
                    Shape::Full | Shape::Ring => "nodes",
                    Shape::Mesh | Shape::Torus => "width and height",
                    Shape::FatTree => "ports",
                    Shape::QuadBoards => "boards",
                };
                let nodes = topology.nodes();
                Err(StudyError::Impossible(format!("a topology needs two nodes, not {nodes}: say {keys}")))
            }
            count if count > MOST_NODES => {
                Err(StudyError::Impossible(format!("a topology has {MOST_NODES} nodes at most, not {count}")))
            }
            _ => Ok(topology),
        }
    }
}

/// What nodes do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Who writes to whom.
    pub kind: WorkloadKind,
    /// Bytes of a transfer.
    #[serde(default = "usual_bytes")]
    pub bytes: u32,
    /// Transfers of each pair of sender and receiver.
    #[serde(default = "one")]
    pub count: u64,
    /// How many of them may be open at once.
    #[serde(default = "one")]
    pub outstanding: u64,
    /// From the end of one to the beginning of the next, in microseconds.
    #[serde(default)]
    pub gap_us: u64,
    /// Whether the receiver reads, in place of the sender writing.
    #[serde(default)]
    pub reads: bool,
    /// With `listed`: from, to, bytes, and when it begins in microseconds.
    #[serde(default)]
    pub transfers: Vec<(u32, u32, u32, u64)>,
}

/// Who writes to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkloadKind {
    /// Each node to another one, drawn once for all of its transfers.
    Uniform,
    /// All to the first one.
    Incast,
    /// All to all.
    AllToAll,
    /// Each to one, and no two to the same.
    Permutation,
    /// As listed.
    Listed,
}

/// How engines go about transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineKind {
    /// Whether small transfers go before large ones.
    pub classes: bool,
    /// Whether what QOS §3.3 made quicker is.
    pub optimised: bool,
}

impl Default for EngineKind {
    fn default() -> Self {
        Self { classes: true, optimised: true }
    }
}

/// What links do wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Packets do not arrive.
    pub loss: u32,
    /// They arrive with changed bytes.
    pub corruption: u32,
    /// They arrive twice.
    pub duplication: u32,
    /// They arrive later by up to `delay_us`.
    pub reordering: u32,
    /// How much later, in microseconds.
    pub delay_us: u64,
}

/// Which pages are absent when the first transfer of a pair of nodes begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pages {
    /// Those of its source.
    #[serde(default)]
    pub source: bool,
    /// Those of its destination.
    #[serde(default)]
    pub destination: bool,
    /// Pages that a fault brings in: 1 is touch-a-page.
    #[serde(default = "one_page")]
    pub ahead: u16,
    /// Whether accesses to present pages go on while a fault is handled.
    #[serde(default = "yes")]
    pub hits_under_fault: bool,
}

/// Nodes that share an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    /// How many.
    #[serde(default = "one_link")]
    pub nodes: u8,
    /// What they send and get.
    pub traffic: Traffic,
    /// Whether they send.
    #[serde(default = "yes")]
    pub sends: bool,
    /// Whether they get.
    #[serde(default)]
    pub receives: bool,
    /// Connections of each.
    #[serde(default = "one_link")]
    pub flows: u8,
    /// Frames to an interrupt.
    #[serde(default = "one_frame")]
    pub frames_to_interrupt: u32,
    /// The longest that an interrupt waits for them, in microseconds.
    #[serde(default)]
    pub interrupt_after_us: u64,
}

/// What such nodes send and get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// Frames, without an operating system.
    BareMetal,
    /// Frames of the kernel.
    Raw,
    /// TCP.
    Tcp,
}

fn one() -> u64 {
    1
}

fn one_link() -> u8 {
    1
}

fn one_page() -> u16 {
    1
}

fn one_frame() -> u32 {
    1
}

fn yes() -> bool {
    true
}

fn usual_bytes() -> u32 {
    4_096
}

impl Scenario {
    /// Reads a scenario, with these keys set to these values: `workload.bytes`, `constants.timeout`.
    ///
    /// # Errors
    /// [`StudyError`], if the file has a field that nobody knows, or a key is none.
    pub fn parse(text: &str, set: &[(String, String)]) -> Result<Self, StudyError> {
        let mut table: toml::Table = text.parse().map_err(|error: toml::de::Error| unreadable(&error))?;
        for (key, value) in set {
            put(&mut table, key, value)?;
        }
        let said = |error: toml::de::Error| unreadable(&error);
        let scenario: Self = toml::Value::Table(table).try_into().map_err(said)?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Whether it can be run: what cannot be is said before anything is.
    fn check(&self) -> Result<(), StudyError> {
        let platform = self.platform()?;
        for name in self.constants.keys() {
            let constant = platform.constant(name)?;
            if matches!(constant.unit, Unit::Count | Unit::Thousandths) && constant.value > MOST {
                return impossible(format!("constants.{name} is at most {MOST}, not {}", constant.value));
            }
        }
        let Faults { loss, corruption, duplication, reordering, .. } = self.faults;
        for (name, value) in [
            ("loss", loss),
            ("corruption", corruption),
            ("duplication", duplication),
            ("reordering", reordering),
        ] {
            within(&format!("faults.{name}"), value.into(), 0, 1_000_000)?;
        }
        match (&self.topology, &self.workload, &self.interface) {
            (Some(topology), Some(workload), None) => {
                within("topology.links", topology.links.into(), 1, MOST_LINKS)?;
                within("workload.count", workload.count, 1, u64::from(u32::MAX))?;
                within("workload.outstanding", workload.outstanding, 1, u64::from(u32::MAX))?;
                workload.check(topology.topology()?.nodes())?;
                self.pages.map_or(Ok(()), |pages| within("pages.ahead", pages.ahead.into(), 1, 64))
            }
            (None, None, Some(interface)) => {
                within("interface.nodes", interface.nodes.into(), 1, 64)?;
                within("interface.flows", interface.flows.into(), 1, 64)?;
                within("interface.frames_to_interrupt", interface.frames_to_interrupt.into(), 1, 1 << 20)?;
                let is_alone = self.faults == Faults::default() && self.pages.is_none();
                match is_alone && self.engine == EngineKind::default() {
                    true => Ok(()),
                    false => impossible("[interface] has no use for [faults], [pages] and [engine]".into()),
                }
            }
            _ => impossible("a scenario has either [topology] and [workload], or [interface]".into()),
        }
    }

    /// The text of an example.
    pub fn example(name: &str) -> Option<&'static str> {
        EXAMPLES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }

    /// As a file that gives the same again, with what was set.
    ///
    /// # Errors
    /// [`StudyError::Unreadable`], if a seed is beyond what TOML can hold.
    pub fn to_toml(&self) -> Result<String, StudyError> {
        toml::to_string(self).map_err(|error| StudyError::Unreadable(error.to_string()))
    }

    /// The platform, with the other values of its constants.
    ///
    /// # Errors
    /// [`StudyError::NoPlatform`], [`StudyError::Platform`].
    pub fn platform(&self) -> Result<Platform, StudyError> {
        let known = || PLATFORMS.map(|(name, _)| name).join(", ");
        let missing = || StudyError::NoPlatform(self.platform.clone(), known());
        let mut platform = Platform::named(&self.platform).ok_or_else(missing)?;
        for (constant, value) in &self.constants {
            platform = platform.with(constant, *value)?;
        }
        Ok(platform)
    }
}

/// The most that a constant without a unit may be set to: tables have as many entries.
const MOST: f64 = 1_048_576.0;
/// Links between neighbours, which are the paths of an engine.
const MOST_LINKS: u64 = 8;
/// When a listed transfer may begin at the latest, in microseconds.
const MOST_US: u64 = 1_000_000_000;

fn impossible(what: String) -> Result<(), StudyError> {
    Err(StudyError::Impossible(what))
}

fn within(key: &str, value: u64, least: u64, most: u64) -> Result<(), StudyError> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => impossible(format!("{key} is {least} to {most}, not {value}")),
    }
}

impl Workload {
    /// Whether its transfers are between nodes that there are.
    fn check(&self, nodes: u32) -> Result<(), StudyError> {
        if self.kind != WorkloadKind::Listed && !self.transfers.is_empty() {
            return impossible("workload.transfers are those of kind = \"listed\"".into());
        }
        for (from, to, _, us) in &self.transfers {
            if from == to || *from >= nodes || *to >= nodes {
                return impossible(format!(
                    "workload.transfers has one from node {from} to {to}, of {nodes}"
                ));
            }
            within("the beginning of a listed transfer", *us, 0, MOST_US)?;
        }
        Ok(())
    }
}

fn unreadable(error: &toml::de::Error) -> StudyError {
    StudyError::Unreadable(error.to_string().trim_end().to_owned())
}

/// Sets a key of nested tables.
fn put(table: &mut toml::Table, key: &str, value: &str) -> Result<(), StudyError> {
    let wrong = |what: &str| StudyError::Key { key: key.into(), value: value.into(), what: what.into() };
    // What is no value of TOML is text.
    let parsed = format!("x = {value}").parse::<toml::Table>().ok().and_then(|mut one| one.remove("x"));
    let parsed = parsed.unwrap_or_else(|| toml::Value::String(value.into()));
    let (path, last) = key.rsplit_once('.').map_or(("", key), |(path, last)| (path, last));
    if last.is_empty() {
        return Err(wrong("no key"));
    }
    let mut at = table;
    for name in path.split('.').filter(|name| !name.is_empty()) {
        let next = at.entry(name).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        at = next.as_table_mut().ok_or_else(|| wrong("a value has no keys"))?;
    }
    at.insert(last.into(), parsed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: &str =
        "platform = \"exanest-qfdb\"\n[topology]\nkind = \"ring\"\nnodes = 4\n[workload]\nkind = \"incast\"";

    fn parse(set: &[(&str, &str)]) -> Result<Scenario, String> {
        let set: Vec<_> = set.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Scenario::parse(RING, &set).map_err(|error| error.to_string())
    }

    #[test]
    fn keys_are_set_wherever_they_are() {
        let scenario =
            parse(&[("workload.bytes", "65536"), ("workload.kind", "uniform"), ("constants.timeout", "5")])
                .expect("a scenario");
        let workload = scenario.workload.expect("a workload");
        assert_eq!((workload.bytes, workload.kind), (65_536, WorkloadKind::Uniform));
        assert_eq!(scenario.constants["timeout"], 5.0);
    }

    #[test]
    fn what_nobody_knows_is_refused() {
        for (key, value, error) in [
            ("workload.byte", "1", "unknown field `byte`"),
            ("workload.kind", "outcast", "unknown variant `outcast`"),
            ("constants.nothing", "1", "has no constant nothing"),
            ("constants.timeout", "-1", "is -1 ms, which cannot be"),
            ("platform", "none", "there is no platform none"),
            ("seed.x", "1", "invalid type"),
            ("workload.", "1", "no key"),
            ("topology.kind.x", "1", "a value has no keys"),
        ] {
            let said = parse(&[(key, value)]).expect_err(key);
            assert!(said.contains(error), "{key}: {said}");
        }
    }

    #[test]
    fn what_cannot_be_is_said_before_anything_runs() {
        for (set, error) in [
            (&[("topology.links", "9")][..], "topology.links is 1 to 8, not 9"),
            (&[("workload.outstanding", "0")], "workload.outstanding is 1 to"),
            (&[("workload.transfers", "[[0,1,1,0]]")], "are those of kind = \"listed\""),
            (&[("faults.loss", "1000001")], "faults.loss is 0 to 1000000"),
            (&[("constants.smmu_walks", "1e15")], "constants.smmu_walks is at most 1048576"),
            (&[("pages.ahead", "65")], "pages.ahead is 1 to 64, not 65"),
            (
                &[("workload.kind", "listed"), ("workload.transfers", "[[0,1,1,1000000001]]")],
                "is 0 to 1000000000",
            ),
            (&[("interface.traffic", "tcp")], "either [topology] and [workload], or [interface]"),
        ] {
            let said = parse(set).expect_err("it cannot be");
            assert!(said.contains(error), "{set:?}: {said}");
        }
    }

    #[test]
    fn examples_are_scenarios_that_are_written_as_they_are_read() {
        for (name, text) in EXAMPLES {
            let scenario = Scenario::parse(text, &[]).expect(name);
            let again = scenario.to_toml().expect(name);
            assert_eq!(Scenario::parse(&again, &[]), Ok(scenario), "{name}: {again}");
            assert_eq!(Scenario::example(name), Some(text));
        }
    }

    #[test]
    fn a_topology_has_as_many_nodes_as_can_be() {
        let of =
            |set: &[(&str, &str)]| parse(set).map(|scenario| scenario.topology.map(TopologyKind::topology));
        assert_eq!(of(&[]), Ok(Some(Ok(Topology::Ring { nodes: 4 }))));
        for set in [
            &[("topology.nodes", "1")][..],
            &[("topology.nodes", "257")],
            &[("topology.kind", "fat-tree"), ("topology.ports", "5")],
            &[("topology.kind", "torus"), ("topology.width", "200"), ("topology.height", "200")],
        ] {
            let said = of(set).expect_err("it cannot be");
            assert!(said.contains("topology"), "{set:?}: {said}");
        }
    }
}
