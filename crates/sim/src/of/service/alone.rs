//! The service alone, as what its replicas must equal.

use crate::checkers::linearizable::Specification;
use bytes::Bytes;
use meridian_paxos::Service;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ask {
    /// A request: [`Service::execute`].
    Execute(Bytes),
    /// A question, which changes nothing: [`Service::query`].
    Query(Bytes),
}

/// A service that is asked one thing after the other. Its states are its snapshots, so two states
/// are equal if and only if their snapshots are.
#[derive(Clone, Debug)]
pub struct Alone<S>(pub S);

impl<S: Service> Alone<S> {
    /// The service in this state.
    ///
    /// # Panics
    /// If it does not take its own snapshot.
    fn at(&self, snapshot: &Bytes) -> S {
        let mut service = self.0.clone();
        let restored = service.restore(snapshot);
        restored.unwrap_or_else(|why| panic!("the service refuses its own snapshot: {why}"));
        service
    }
}

impl<S: Service> Specification for Alone<S> {
    type State = Bytes;
    type Operation = Ask;
    type Outcome = Bytes;

    fn initial(&self) -> Bytes {
        self.0.snapshot()
    }

    fn apply(&self, state: &Bytes, ask: &Ask) -> (Bytes, Bytes) {
        let mut service = self.at(state);
        match ask {
            Ask::Execute(request) => {
                let reply = service.execute(request);
                (service.snapshot(), reply)
            }
            Ask::Query(question) => (state.clone(), service.query(question)),
        }
    }

    fn changes_nothing(&self, ask: &Ask, _outcome: &Bytes) -> bool {
        matches!(ask, Ask::Query(_))
    }
}
