//! The replicated service of the trials: some registers, and a record of what was executed.

use crate::checkers::linearizable::Specification;
use bytes::Bytes;
use meridian_paxos::{Hint, Service};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What a client asks a register to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Action {
    /// Tells what it holds.
    Read,
    /// Holds this from now on.
    Write(u64),
    /// Holds so much more.
    Add(u64),
    /// Holds the second if it held the first.
    Swap(u64, u64),
}

/// What a register holds, and how often it was written.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Register {
    /// The value.
    pub value: u64,
    /// So many writes made it.
    pub version: u64,
}

impl Register {
    /// What it is after an action: also the reply.
    pub fn after(self, action: Action) -> Register {
        let value = match action {
            Action::Read => return self,
            Action::Write(value) => value,
            Action::Add(more) => self.value.wrapping_add(more),
            Action::Swap(old, new) if old == self.value => new,
            Action::Swap(..) => return self,
        };
        Register { value, version: self.version + 1 }
    }
}

/// Registers, as the checker of linearizability knows them.
#[derive(Clone, Copy, Debug)]
pub struct Specified;

impl Specification for Specified {
    type State = Register;
    type Operation = Action;
    type Outcome = Register;

    fn initial(&self) -> Register {
        Register::default()
    }

    fn apply(&self, state: &Register, action: &Action) -> (Register, Register) {
        let after = state.after(*action);
        (after, after)
    }

    fn changes_nothing(&self, action: &Action, outcome: &Register) -> bool {
        match action {
            Action::Read => true,
            Action::Swap(_, new) => outcome.value != *new,
            Action::Write(_) | Action::Add(_) => false,
        }
    }

    /// Versions only grow, and each is made once.
    fn is_past(&self, state: &Register, action: &Action, outcome: &Register) -> bool {
        match action {
            Action::Write(_) | Action::Add(_) => outcome.version <= state.version,
            Action::Read | Action::Swap(..) => outcome.version < state.version,
        }
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Call {
    /// No two requests have the same, however often one is sent.
    pub operation: u64,
    /// Of which register.
    pub key: u8,
    /// What it is to do.
    pub action: Action,
    /// Makes it long.
    pub padding: Vec<u8>,
}

impl Call {
    /// As it travels.
    pub fn bytes(&self) -> Bytes {
        postcard::to_stdvec(self).expect("writing to memory").into()
    }
}

/// A register as it travels.
pub fn register_of(reply: &[u8]) -> Register {
    postcard::from_bytes(reply).unwrap_or_else(|error| panic!("{reply:?} is no register: {error}"))
}

/// What all replicas have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Shared {
    registers: BTreeMap<u8, Register>,
    executed: BTreeSet<u64>,
    digest: u64,
    twice: Option<u64>,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Registers {
    shared: Shared,
    /// For its wishes for snapshots: each replica has its own.
    chance: u64,
    /// One in so many times it wants a snapshot without being asked; 0 for never.
    eager: u64,
}

impl Registers {
    /// Registers that want a snapshot once in about `eager` requests, and as they are asked with
    /// some delay.
    pub fn new(seed: u64, eager: u64) -> Registers {
        Registers { shared: Shared::default(), chance: seed | 1, eager }
    }

    /// How many requests were executed.
    pub fn executed(&self) -> usize {
        self.shared.executed.len()
    }

    /// Whether this request was executed.
    pub fn has_executed(&self, operation: u64) -> bool {
        self.shared.executed.contains(&operation)
    }

    /// A request that was executed more than once.
    pub fn twice(&self) -> Option<u64> {
        self.shared.twice
    }

    fn draw(&mut self, of: u64) -> bool {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        of > 0 && self.chance.is_multiple_of(of)
    }
}

impl Service for Registers {
    fn execute(&mut self, request: &Bytes) -> Bytes {
        let call: Call = postcard::from_bytes(request).expect("clients send nothing else");
        let shared = &mut self.shared;
        if !shared.executed.insert(call.operation) {
            shared.twice = Some(call.operation);
        }
        let register = shared.registers.entry(call.key).or_default();
        *register = register.after(call.action);
        let sum =
            call.operation ^ register.value.rotate_left(17) ^ register.version.rotate_left(41);
        shared.digest = (shared.digest ^ sum).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
        postcard::to_stdvec(register).expect("writing to memory").into()
    }

    fn query(&self, question: &[u8]) -> Bytes {
        let register = self.shared.registers.get(&question[0]).copied().unwrap_or_default();
        postcard::to_stdvec(&register).expect("writing to memory").into()
    }

    fn snapshot(&self) -> Bytes {
        postcard::to_stdvec(&self.shared).expect("writing to memory").into()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        self.shared = postcard::from_bytes(snapshot).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn wants_snapshot(&mut self, hint: Hint) -> bool {
        match hint {
            Hint::Fine => self.draw(self.eager),
            Hint::Ask => self.draw(3),
            Hint::Force => true,
        }
    }

    fn digest(&self) -> u64 {
        self.shared.digest
    }
}
