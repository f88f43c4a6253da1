//! What the lists of `ps`, `top` and `lenders` have in common: cells of lenders, nodes and ports.

use serde_json::Value;
use tombolo_node::harmless_name;

use crate::duration;
use crate::watch::{number, size, word};

/// NAME, STATE, BORROWED, USED of a lender.
pub fn lender(lender: &Value) -> Vec<String> {
    vec![
        word(lender, "name").to_owned(),
        word(lender, "state").to_owned(),
        size(&lender["borrowed_bytes"]),
        size(&lender["used_bytes"]),
    ]
}

/// The lenders of a program that have something of it, or may get something.
pub fn present_lenders(program: &Value) -> impl Iterator<Item = &Value> {
    let lenders = program["far"]["lenders"].as_array().into_iter().flatten();
    lenders.filter(|lender| lender["state"] != "gone")
}

/// NODE, PID, UP, LENT, FREE, BORROWERS, NEIGHBOURS.
pub fn node(node: &Value) -> Vec<String> {
    let count = |list: &str| node[list].as_array().map_or(0, Vec::len);
    let neighbours = node["neighbours"].as_array().into_iter().flatten();
    let joined = neighbours.filter(|neighbour| neighbour["state"] == "joined").count();
    let mut of_neighbours = joined.to_string();
    if joined < count("neighbours") {
        of_neighbours = format!("{joined}, {} away", count("neighbours") - joined);
    }
    vec![
        word(node, "local_name").to_owned(),
        number(&node["process_id"]).to_string(),
        duration::shown_s(number(&node["uptime_s"])),
        size(&node["lent_bytes"]),
        size(&node["free_bytes"]),
        count("borrowers").to_string(),
        of_neighbours,
    ]
}

/// A row for an uplink without ports, or one for each of its ports: UPLINK, PORT, what `figures` makes of it, and the state.
pub fn ports(uplink: &Value, figures: impl Fn(&Value) -> Vec<String>) -> Vec<Vec<String>> {
    let of = &uplink["uplink"];
    let state = if of["has_carrier"] == false { "no carrier" } else { "" };
    let row = |name: String, cells: Vec<String>| {
        let mut row = vec![word(of, "interface").to_owned(), name];
        row.extend(cells);
        row.push(state.to_owned());
        row
    };
    match uplink["ports"].as_array() {
        // The name is what whoever has attached it says.
        Some(ports) if !ports.is_empty() => {
            ports.iter().map(|port| row(harmless_name(word(&port["port"], "name")), figures(port))).collect()
        }
        _ => vec![row("-".to_owned(), figures(of))],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_uplink_without_ports_has_a_row_of_its_own() {
        let figures = |of: &Value| vec![number(&of["counters"]).to_string()];
        let uplink = |ports: Value| json!({ "uplink": { "interface": "eth0", "has_carrier": false, "counters": 3 }, "ports": ports });
        assert_eq!(ports(&uplink(json!([])), figures), [["eth0", "-", "3", "no carrier"]]);
        let port = |name: &str| json!({ "port": { "name": name }, "counters": 1 });
        let rows = ports(&uplink(json!([port("web"), port("\u{1b}[2J")])), figures);
        assert_eq!(rows[0], ["eth0", "web", "1", "no carrier"]);
        assert!(!rows[1][1].contains('\u{1b}'), "{rows:?}");
    }
}
