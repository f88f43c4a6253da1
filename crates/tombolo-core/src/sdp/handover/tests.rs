use super::*;

const SECOND: Time = 1_000_000_000;
const LIMITS: Limits = Limits {
    offers_max: 3,
    offers_of_user_max: 1,
    listeners_max: 2,
    first_look: 30_000_000,
    last_look: SECOND,
};
const SPACE: Space = Space(9);

fn listener(id: u64, port: u16) -> Listener {
    let at = Endpoint { address: [0; 16], port };
    Listener { id: ListenerId(id), space: SPACE, at, process: 1, user: 0 }
}

fn end(port: u16) -> Endpoint {
    Endpoint { address: [1; 16], port }
}

fn flow(client: u16) -> Flow {
    Flow { space: SPACE, client: end(client), server: end(80) }
}

fn drain(handover: &mut Handover) -> Vec<Action> {
    std::iter::from_fn(|| handover.poll()).collect()
}

/// A node with a listener at port 80.
fn node() -> Handover {
    let mut node = Handover::new(LIMITS, 1);
    node.handle(0, Event::Listens { listener: listener(5, 80) });
    node
}

/// A client's request is examined: client and offer have the number `id`.
fn connect(node: &mut Handover, id: u64) -> Vec<Action> {
    let request = RequestId(id);
    node.handle(0, Event::Connects { request, space: SPACE, to: end(80), other_user: None });
    let actions = drain(node);
    assert!(matches!(actions[..], [Action::Examine { .. }]), "{actions:?}");
    let Action::Examine { offer, .. } = actions[0] else { unreachable!() };
    node.handle(0, Event::Examined { offer, found: Ok((flow(1000 + id as u16), ListenerId(5))) });
    drain(node)
}

#[test]
fn a_connection_is_handed_over() {
    let mut node = node();
    let offer = OfferId(1);
    assert_eq!(connect(&mut node, 1), [Action::GiveToClient { offer, request: RequestId(1) }]);
    assert_eq!((node.open_at(80), node.next_deadline()), (1, None));
    node.handle(0, Event::Taken { request: RequestId(1) });
    assert_eq!(node.next_deadline(), Some(LIMITS.first_look));
    let request = RequestId(2);
    node.handle(1, Event::Accepts { request, flow: flow(1001) });
    assert_eq!(drain(&mut node), [Action::GiveToServer { offer, request }]);
    node.handle(2, Event::Taken { request });
    assert_eq!(drain(&mut node), [Action::Keep { offer }]);
    assert_eq!((node.open_at(80), node.next_deadline(), node.counters().handed_over), (0, None, 1));
    assert_eq!(node.all().collect::<Vec<_>>(), [(offer, flow(1001), Mode::HandedOver)]);
    // The same addresses may be used again: another connection of that name is no offer of this one.
    node.handle(3, Event::Accepts { request: RequestId(3), flow: flow(1001) });
    assert_eq!(drain(&mut node), [Action::Refuse { request: RequestId(3), reason: Reason::NoOffer }]);
    node.handle(4, Event::Over { offer });
    assert_eq!(drain(&mut node), [Action::Close { offer }]);
    assert_eq!(node.all().count(), 0);
}

/// What a server and a client do in each state, and what comes of it.
#[test]
fn each_event_in_each_state() {
    let offer = OfferId(1);
    let (client, server, other) = (RequestId(1), RequestId(2), RequestId(3));
    let asks = Event::Accepts { request: server, flow: flow(1001) };
    // How each state is come to.
    let states: [(&str, &[Event]); 6] = [
        ("made", &[]),
        ("made, and asked for", &[asks]),
        ("made, and the server writes", &[Event::Wrote { offer }]),
        ("taken by the client", &[Event::Taken { request: client }]),
        ("asked", &[Event::Taken { request: client }, asks]),
        ("handed over", &[Event::Taken { request: client }, asks, Event::Taken { request: server }]),
    ];
    let events: [(&str, Event); 7] = [
        ("client takes", Event::Taken { request: client }),
        ("client leaves", Event::Left { request: client }),
        ("server asks", Event::Accepts { request: other, flow: flow(1001) }),
        ("server takes", Event::Taken { request: server }),
        ("server leaves", Event::Left { request: server }),
        ("server writes", Event::Wrote { offer }),
        ("reset", Event::Reset { offer }),
    ];
    let mut table = String::new();
    for (state, before) in states {
        for (name, event) in events {
            let mut node = node();
            connect(&mut node, 1);
            before.iter().for_each(|event| node.handle(0, *event));
            drain(&mut node);
            node.handle(1, event);
            let actions: Vec<_> = drain(&mut node).into_iter().map(short).collect();
            if !actions.is_empty() {
                table += &format!("{state}: {name}: {}\n", actions.join(", "));
            }
        }
    }
    assert_eq!(table, include_str!("table.txt"), "{table}");
}

fn short(action: Action) -> String {
    match action {
        Action::Examine { .. } => "examine".into(),
        Action::Refuse { request: RequestId(3), .. } => "refuse the other".into(),
        Action::Refuse { .. } => "refuse the server".into(),
        Action::GiveToClient { .. } => "give to the client".into(),
        Action::GiveToServer { .. } => "give to the server".into(),
        Action::Look { .. } => "look".into(),
        Action::Keep { .. } => "keep".into(),
        Action::Relay { .. } => "relay".into(),
        Action::ResetClient { .. } => "reset the client".into(),
        Action::Close { .. } => "close".into(),
    }
}

#[test]
fn a_server_that_accepts_and_does_not_ask_is_relayed_and_gets_no_more() {
    let mut node = node();
    connect(&mut node, 1);
    node.handle(0, Event::Taken { request: RequestId(1) });
    let offer = OfferId(1);
    let mut now = 0;
    let mut waits = Vec::new();
    // In the queue of its listener, it may be for long.
    for _ in 0..7 {
        let at = node.next_deadline().unwrap();
        waits.push((at - now) / 1_000_000);
        now = at;
        node.tick(now - 1);
        assert_eq!(drain(&mut node), []);
        node.tick(now);
        assert_eq!(drain(&mut node), [Action::Look { offer }]);
        node.handle(now, Event::Looked { offer, is_accepted: false });
    }
    assert_eq!(waits, [30, 60, 120, 240, 480, 960, 1000]);
    for is_first in [true, false] {
        now = node.next_deadline().unwrap();
        node.tick(now);
        assert_eq!(drain(&mut node), [Action::Look { offer }]);
        node.handle(now, Event::Looked { offer, is_accepted: true });
        let expected: &[_] = if is_first { &[] } else { &[Action::Relay { offer }] };
        assert_eq!(drain(&mut node), expected);
    }
    assert!(!node.is_offered(80));
    node.handle(now, Event::Connects { request: RequestId(9), space: SPACE, to: end(80), other_user: None });
    let reason = Reason::AcceptedWithout;
    assert_eq!(drain(&mut node), [Action::Refuse { request: RequestId(9), reason }]);
    // Nor does it when it is noted again.
    node.handle(now, Event::Listens { listener: listener(5, 80) });
    assert!(!node.is_offered(80));
}

/// A server that has asked has the library, however late it is.
#[test]
fn a_server_that_was_late_gets_further_offers() {
    for is_before_the_client in [true, false] {
        let mut node = node();
        connect(&mut node, 1);
        let (client, server) = (RequestId(1), RequestId(2));
        let asks = Event::Accepts { request: server, flow: flow(1001) };
        let left = Event::Left { request: server };
        let taken = Event::Taken { request: client };
        let events = if is_before_the_client { [asks, left, taken] } else { [taken, asks, left] };
        events.into_iter().for_each(|event| node.handle(0, event));
        assert_eq!(drain(&mut node).last(), Some(&Action::Relay { offer: OfferId(1) }));
        assert!(node.is_offered(80));
    }
}

/// A server says that it has its end before it was given one: it gets none, and the offer ends as any other.
#[test]
fn who_says_too_much_is_relayed() {
    let mut node = node();
    connect(&mut node, 1);
    node.handle(0, Event::Accepts { request: RequestId(2), flow: flow(1001) });
    node.handle(0, Event::Taken { request: RequestId(2) });
    node.handle(0, Event::Taken { request: RequestId(1) });
    assert_eq!(drain(&mut node).last(), Some(&Action::Relay { offer: OfferId(1) }));
    node.handle(0, Event::Over { offer: OfferId(1) });
    assert_eq!((node.all().count(), node.open_at(80)), (0, 0));
}

#[test]
fn what_is_not_there_or_too_much_is_refused() {
    let mut node = node();
    let refused = |node: &mut Handover, space, to| {
        node.handle(0, Event::Connects { request: RequestId(100), space, to, other_user: None });
        match drain(node)[..] {
            [Action::Refuse { reason, .. }] => Some(reason),
            _ => None,
        }
    };
    assert_eq!(refused(&mut node, SPACE, end(81)), Some(Reason::NoListener));
    assert_eq!(refused(&mut node, Space(1), end(80)), Some(Reason::NoListener));
    let mut at_one = listener(6, 81);
    at_one.at.address = [2; 16];
    node.handle(0, Event::Listens { listener: at_one });
    assert_eq!(refused(&mut node, SPACE, end(81)), Some(Reason::NoListener));
    for id in 1..=3 {
        connect(&mut node, id);
    }
    assert_eq!(refused(&mut node, SPACE, end(80)), Some(Reason::Full));
    // The oldest listener is forgotten.
    node.handle(0, Event::Listens { listener: listener(7, 82) });
    assert_eq!(node.listeners().map(|(one, _)| one.id.0).collect::<Vec<_>>(), [6, 7]);
    assert_eq!(node.counters().refused[&Reason::NoListener], 3);
    assert!(node.is_offered(82));
    node.take_changed();
    node.handle(0, Event::Closed { listener: ListenerId(7) });
    assert!(!node.is_offered(82));
    assert_eq!(node.take_changed(), [82].into());
}

#[test]
fn another_user_has_a_part_of_all_offers() {
    let mut node = node();
    let mut connects = |id, user| {
        let event =
            Event::Connects { request: RequestId(id), space: SPACE, to: end(80), other_user: Some(user) };
        node.handle(0, event);
        drain(&mut node)
    };
    let full = |id| [Action::Refuse { request: RequestId(id), reason: Reason::Full }];
    assert!(matches!(connects(1, 7)[..], [Action::Examine { .. }]));
    assert_eq!(connects(2, 7), full(2));
    assert!(matches!(connects(3, 8)[..], [Action::Examine { .. }]));
    node.handle(0, Event::Examined { offer: OfferId(1), found: Err(Reason::NotConnected) });
    drain(&mut node);
    let event = Event::Connects { request: RequestId(4), space: SPACE, to: end(80), other_user: Some(7) };
    node.handle(0, event);
    assert!(matches!(drain(&mut node)[..], [Action::Examine { .. }]));
}

#[test]
fn what_is_found_out_counts() {
    for (found, reason) in [
        (Err(Reason::NotConnected), Reason::NotConnected),
        (Ok((flow(1001), ListenerId(4))), Reason::NoListener),
    ] {
        let mut node = node();
        let (request, offer) = (RequestId(1), OfferId(1));
        node.handle(0, Event::Connects { request, space: SPACE, to: end(80), other_user: None });
        drain(&mut node);
        node.handle(0, Event::Examined { offer, found });
        assert_eq!(drain(&mut node), [Action::Refuse { request, reason }, Action::Close { offer }]);
        assert_eq!((node.open_at(80), node.all().count()), (0, 0));
    }
    // The client has gone meanwhile.
    let mut node = node();
    let (request, offer) = (RequestId(1), OfferId(1));
    node.handle(0, Event::Connects { request, space: SPACE, to: end(80), other_user: None });
    node.handle(0, Event::Left { request });
    drain(&mut node);
    node.handle(0, Event::Examined { offer, found: Ok((flow(1001), ListenerId(5))) });
    assert_eq!(drain(&mut node), [Action::Close { offer }]);
    assert_eq!((node.counters().cancelled, node.open_at(80)), (1, 0));
}
