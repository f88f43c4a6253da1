use std::time::Duration;

use tombolo_client::{Domain, Failure, Grant, Notification, OpenError, Spec, Target, WaitError, Who};
use tombolo_wire::NackCode;

use crate::harness::{Host, PATIENCE, pair, shm, udp};

/// The error names the page.
fn refused(code: NackCode, address: u64) -> Result<(), WaitError> {
    Err(WaitError::Failed(Failure::Refused { code, page: Some(address & !4095) }))
}

/// Everything that a domain may not do to another at node `node`.
fn nothing_is_let_through(near: &Domain, far: &Domain, node: u32) {
    let mine = near.allocate(8192, &[]).unwrap();
    let private = far.allocate(8192, &[]).unwrap();
    let readable = far.allocate(8192, &[Grant::read(Who::Anyone)]).unwrap();
    let target = Target { node, domain: far.number() };
    let write = |to: Target, address: u64, size: u32| {
        near.write(to, Spec::new(mine.address(), address, size)).unwrap().wait(PATIENCE)
    };
    let read = |from: Target, address: u64, size: u32| {
        near.read(from, Spec::new(address, mine.address(), size)).unwrap().wait(PATIENCE)
    };
    mine.write(0, &[7; 8192]).unwrap();
    assert_eq!(write(target, private.address(), 64), refused(NackCode::DomainMismatch, private.address()));
    assert_eq!(read(target, private.address(), 64), refused(NackCode::DomainMismatch, private.address()));
    assert_eq!(write(target, readable.address(), 64), refused(NackCode::DomainMismatch, readable.address()));
    assert_eq!(read(target, readable.address(), 64), Ok(()));
    // Outside, across the end, and nowhere.
    assert_eq!(
        read(target, readable.address() + 8192, 1),
        refused(NackCode::DecodeError, readable.address() + 8192)
    );
    assert_eq!(
        read(target, readable.address() + 8000, 1000),
        refused(NackCode::DecodeError, readable.address() + 8000)
    );
    assert_eq!(read(target, 5, 1), refused(NackCode::DecodeError, 5));
    assert_eq!(read(target, u64::MAX - 10, 100), Err(WaitError::Failed(Failure::BadDescriptor)));
    let nobody = Target { node, domain: 999 };
    assert_eq!(write(nobody, private.address(), 64), refused(NackCode::NoContext, private.address()));
    let buffers = Target { node, domain: 0 };
    assert_eq!(write(buffers, 0, 64), refused(NackCode::NoContext, 0));
    assert_eq!(
        write(Target { node: 77, ..target }, private.address(), 64),
        Err(WaitError::Failed(Failure::NoSuchNode))
    );
    // A notification goes only where bytes may.
    let words = Notification { address: private.address(), first: 1, last: 2 };
    let writable = far.allocate(4096, &[Grant::write(Who::Anyone)]).unwrap();
    let spec = Spec::new(mine.address(), writable.address(), 64).notify(words);
    assert_eq!(
        near.write(target, spec).unwrap().wait(PATIENCE),
        refused(NackCode::DomainMismatch, private.address())
    );
    // Own memory that is not there.
    let spec = Spec::new(1, writable.address(), 64);
    let wrong = near.write(target, spec).unwrap().wait(PATIENCE);
    assert!(matches!(wrong, Err(WaitError::Failed(Failure::Local { page: Some(0), .. }))), "{wrong:?}");
    let spec = Spec::new(readable.address(), 1 << 20, 64);
    let wrong = near.read(target, spec).unwrap().wait(PATIENCE);
    // Also where another node sends the bytes, and tells that they were refused.
    let is_right =
        matches!(wrong, Err(WaitError::Failed(Failure::Local { page: Some(page), .. })) if page == 1 << 20);
    assert!(is_right, "{wrong:?}");
    // Of what is carried, neither end is own.
    let spec = Spec::new(1, writable.address(), 64);
    let wrong = near.carry(target, target, spec).unwrap().wait(PATIENCE);
    assert!(matches!(wrong, Err(WaitError::Failed(Failure::Refused { page: Some(0), .. }))), "{wrong:?}");
    let mut found = vec![0; 8192];
    for memory in [&private, &readable] {
        memory.read(0, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == 0));
    }
    // Freed memory is nowhere.
    let address = readable.address();
    far.free(readable).unwrap();
    assert_eq!(read(target, address, 64), refused(NackCode::DecodeError, address));
}

#[test]
fn grants_are_for_whom_they_name() {
    let hosts = pair(&shm());
    let (owner, friend, other) = (hosts[0].domain(1), hosts[0].domain(2), hosts[0].domain(3));
    let abroad = hosts[1].domain(2);
    let reads = |domain: &Domain, node: u32, address: u64| {
        let memory = domain.allocate(4096, &[]).unwrap();
        let spec = Spec::new(address, memory.address(), 64);
        domain.read(Target { node, domain: 1 }, spec).unwrap().wait(PATIENCE).is_ok()
    };
    for (grants, expected) in [
        (vec![], [false, false, false]),
        (vec![Grant::read(Who::Program(2))], [true, false, false]),
        (vec![Grant::read(Who::Node(1))], [false, false, true]),
        (vec![Grant::read(Who::Node(0))], [true, true, false]),
        (vec![Grant::read(Who::Program(3)), Grant::read(Who::Node(1))], [false, true, true]),
        (vec![Grant::read(Who::Anyone)], [true, true, true]),
        (vec![Grant::write(Who::Anyone)], [false, false, false]),
    ] {
        let address = owner.allocate(4096, &grants).unwrap().address();
        let found = [reads(&friend, 0, address), reads(&other, 0, address), reads(&abroad, 1, address)];
        assert_eq!(found, expected, "{grants:?}");
    }
    assert!(owner.allocate(4096, &[Grant::read(Who::Anyone); 65]).is_err());
}

#[test]
fn at_one_node() {
    let (host, _) = Host::start(&shm(), &[]);
    nothing_is_let_through(&host.domain(1), &host.domain(2), 0);
}

#[test]
fn at_another_node() {
    for address in [shm(), udp()] {
        let hosts = pair(&address);
        nothing_is_let_through(&hosts[0].domain(1), &hosts[1].domain(2), 1);
    }
}

#[test]
fn domains_are_taken_bounded_and_given_back() {
    let (host, _) = Host::start(&shm(), &[]);
    let first = host.domain(9);
    let again = Domain::open(&host.programs, Some(9)).unwrap_err();
    assert!(again.to_string().contains("belongs to another program"), "{again}");
    for wrong in [0, 0x8000] {
        assert!(matches!(Domain::open(&host.programs, Some(wrong)), Err(OpenError::Refused(_))));
    }
    let others: Vec<_> = (0..15).map(|_| Domain::open(&host.programs, None).unwrap()).collect();
    let full = Domain::open(&host.programs, None).unwrap_err();
    assert!(full.to_string().contains("all 16 domains"), "{full}");
    assert!(first.allocate(100, &[]).is_err());
    assert!(first.allocate(64 << 30, &[]).unwrap_err().to_string().contains("left for programs"));
    let large = first.allocate(1 << 30, &[]).unwrap();
    assert!(others[0].allocate(4096, &[]).is_err());
    drop((first, large));
    // The node learns of it by the socket.
    let since = std::time::Instant::now();
    while Domain::open(&host.programs, Some(9)).is_err() {
        assert!(since.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    others[0].allocate(4096, &[]).unwrap();
}

#[test]
fn a_node_that_ends_is_noticed() {
    let (host, _) = Host::start(&shm(), &[]);
    let domain = host.domain(1);
    let memory = domain.allocate(8192, &[]).unwrap();
    drop(host);
    let spec = Spec::new(memory.address(), memory.address() + 4096, 64);
    let ended = domain.write(Target { node: 0, domain: 1 }, spec).unwrap().wait(PATIENCE);
    assert_eq!(ended, Err(WaitError::NodeGone));
    let nowhere = Domain::open("/no/such/socket".as_ref(), None).unwrap_err();
    assert!(nowhere.to_string().contains("tombolo node --programs"), "{nowhere}");
}

#[test]
fn a_lost_node_fails_what_goes_there() {
    let [one, other] = pair(&udp());
    let domain = one.domain(1);
    let memory = domain.allocate(4096, &[]).unwrap();
    drop(other);
    let spec = Spec::new(memory.address(), 1 << 56, 64);
    let ended = domain.write(Target { node: 1, domain: 1 }, spec).unwrap().wait(PATIENCE);
    let Err(WaitError::Failed(failure)) = ended else { panic!("{ended:?}") };
    assert!(matches!(failure, Failure::Gone | Failure::NoSuchNode | Failure::Unreachable), "{failure}");
}
