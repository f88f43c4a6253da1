//! A key that is taken off the list loses its links when the list is read again, and both sides say why.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tombolo_link::LossReason;
use tombolo_node::identity::{AllowList, KeyPair};
use tombolo_node::{Node, Peer, Security, listen, serve};

const TIMEOUT: Duration = Duration::from_secs(20);

/// A file that is gone with the test.
struct List(PathBuf);

impl List {
    fn write(&self, keys: &[&KeyPair]) {
        let lines: String = keys.iter().map(|key| format!("{}\n", key.public())).collect();
        fs::write(&self.0, lines).unwrap();
    }
}

impl Drop for List {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Why a peer is lost; drives its node meanwhile.
fn loss_of(node: &Node, peer: &Arc<Peer>) -> LossReason {
    let since = Instant::now();
    loop {
        node.drive(peer);
        node.tick();
        if let Some(reason) = peer.loss() {
            return reason;
        }
        assert!(since.elapsed() < TIMEOUT, "the link is still up");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_key_that_is_taken_off_the_list_loses_its_links() {
    let [host_key, kept_key, removed_key] = [(); 3].map(|()| KeyPair::generate().unwrap());
    let list = List(std::env::temp_dir().join(format!("tombolo-revocation-{}", std::process::id())));
    list.write(&[&kept_key, &removed_key]);
    let security = Security::secure(host_key.clone(), AllowList::from_file(&list.0).unwrap());
    let listener = listen(&"udp:127.0.0.1:0".parse().unwrap(), &security).unwrap();
    let address = listener.address();
    let host = Arc::new(Node::new("host", 1 << 20, 0).unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (serving, stopped) = (&host, &stop);
        scope.spawn(move || serve(serving, &*listener, stopped, &|_| {}));
        let joined = [&kept_key, &removed_key].map(|key| {
            let node = Node::new("neighbour", 0, 0).unwrap();
            let own = Security::secure(key.clone(), AllowList::Keys(vec![host_key.public()]));
            let peer = node.join(&address, &own, TIMEOUT).unwrap();
            (node, peer, own)
        });
        let [(kept, kept_peer, _), (removed, removed_peer, own)] = &joined;
        assert_eq!(host.close_disallowed(&security).unwrap(), Vec::<String>::new());

        list.write(&[&kept_key]);
        let closed = host.close_disallowed(&security).unwrap();
        assert_eq!(closed, [format!("`neighbour`, {}", removed_key.public())]);
        assert_eq!(loss_of(removed, removed_peer), LossReason::KeyRevoked);
        let again = removed.join(&address, own, TIMEOUT).map(drop).unwrap_err().to_string();
        assert!(again.contains("this node's key is not on the list"), "{again}");
        // The other goes on, also after a list that cannot be read.
        fs::write(&list.0, "nonsense\n").unwrap();
        host.close_disallowed(&security).unwrap_err();
        kept.tick();
        kept.drive(kept_peer);
        assert_eq!(kept_peer.loss(), None);
        list.write(&[&kept_key]);
        let own = Security::secure(kept_key.clone(), AllowList::Keys(vec![host_key.public()]));
        kept.join(&address, &own, TIMEOUT).unwrap();
        stop.store(true, Ordering::Relaxed);
    });
}
