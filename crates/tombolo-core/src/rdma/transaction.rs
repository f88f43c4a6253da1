//! The states of a transaction, declared in one place (QOS §3.2.4).
//!
//! Five states are the document's: free, issued, acked, nacked, retransmitted. `Notifying` is ours: the last
//! block of a transfer may be acknowledged before its notification is released (QOS §3.2.6), and then only the
//! notification, not the block, waits for an answer. `Placing` is ours, too: the receiver has said that it has
//! the bytes and is still placing them. Nothing was lost then, and the packets sent from time to time only ask
//! whether the bytes are placed.

/// State of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The slot is in the ticket queue.
    Free,
    /// Sent once (or about to be), unanswered.
    Issued,
    /// The bytes are at the receiver. If a notification is owed, the slot stays in use.
    Acked,
    /// The bytes are at the receiver and the notification was sent after them.
    Notifying,
    /// The bytes are at the receiver, which takes its time to place them.
    Placing,
    /// The block was refused and waits to be sent again.
    Nacked,
    /// Sent more than once (or about to be), unanswered.
    Retransmitted,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::Free,
        Self::Issued,
        Self::Acked,
        Self::Notifying,
        Self::Placing,
        Self::Nacked,
        Self::Retransmitted,
    ];

    /// Whether an answer would still change something.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Self::Issued | Self::Notifying | Self::Placing | Self::Nacked | Self::Retransmitted)
    }
}

/// What can happen to a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A block takes the slot.
    Issue,
    /// The block, notification included, is acknowledged.
    Ack,
    /// The block's bytes are acknowledged, its notification is not.
    BytesAck,
    /// The block's bytes are being placed.
    Receipt,
    /// The block is refused.
    Nack,
    /// The block is sent again: its timeout or its delay is over, its last transmission counts as lost, its path is
    /// lost, or the peer has told it to resume.
    Resend,
    /// The notification is sent apart from the bytes.
    Notify,
    /// The slot goes back to the ticket queue.
    Release,
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 8] = [
        Self::Issue,
        Self::Ack,
        Self::BytesAck,
        Self::Receipt,
        Self::Nack,
        Self::Resend,
        Self::Notify,
        Self::Release,
    ];
}

/// An event that cannot happen in a state: a defect of the engine, never of a
/// peer. It is counted, and the event is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} is impossible in state {state:?}")]
pub struct IllegalTransition {
    /// The state.
    pub state: State,
    /// The event.
    pub event: Event,
}

impl State {
    /// The state after `event`.
    ///
    /// # Errors
    /// [`IllegalTransition`] for a pair that the table does not have.
    pub fn after(self, event: Event) -> Result<Self, IllegalTransition> {
        use State::{Acked, Free, Issued, Nacked, Notifying, Placing, Retransmitted};
        Ok(match (self, event) {
            (Free, Event::Issue) => Issued,
            (Issued | Retransmitted | Nacked | Notifying | Placing | Acked, Event::Ack) => Acked,
            (Issued | Retransmitted | Nacked | Placing | Acked, Event::BytesAck) => Acked,
            (Notifying, Event::BytesAck | Event::Receipt | Event::Resend) => Notifying,
            (Issued | Retransmitted | Placing, Event::Receipt) => Placing,
            (Issued | Retransmitted | Notifying | Placing | Nacked, Event::Nack) => Nacked,
            (Issued | Retransmitted | Placing | Nacked, Event::Resend) => Retransmitted,
            (Acked, Event::Notify) => Notifying,
            (Issued | Retransmitted | Nacked | Notifying | Placing | Acked, Event::Release) => Free,
            (state, event) => return Err(IllegalTransition { state, event }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    /// The whole table; `.` is impossible. A change here is a change of protocol.
    const TABLE: &str = "\
State         Issue          Ack            BytesAck       Receipt        Nack           Resend         Notify         Release
Free          Issued         .              .              .              .              .              .              .
Issued        .              Acked          Acked          Placing        Nacked         Retransmitted  .              Free
Acked         .              Acked          Acked          .              .              .              Notifying      Free
Notifying     .              Acked          Notifying      Notifying      Nacked         Notifying      .              Free
Placing       .              Acked          Acked          Placing        Nacked         Retransmitted  .              Free
Nacked        .              Acked          Acked          .              Nacked         Retransmitted  .              Free
Retransmitted .              Acked          Acked          Placing        Nacked         Retransmitted  .              Free
";

    #[test]
    fn the_table_is_the_declared_one() {
        let mut table = format!("{:<14}", "State");
        for event in Event::ALL {
            let _ = write!(table, "{:<15}", format!("{event:?}"));
        }
        table = table.trim_end().to_owned() + "\n";
        for state in State::ALL {
            let mut row = format!("{:<14}", format!("{state:?}"));
            for event in Event::ALL {
                let after = state.after(event).map_or(".".to_owned(), |next| format!("{next:?}"));
                let _ = write!(row, "{after:<15}");
            }
            table += row.trim_end();
            table += "\n";
        }
        println!("{table}");
        assert_eq!(table, TABLE);
    }

    #[test]
    fn an_impossible_transition_has_a_name() {
        let error = State::Free.after(Event::Ack).expect_err("nothing to acknowledge");
        assert_eq!(error.to_string(), "Ack is impossible in state Free");
    }
}
