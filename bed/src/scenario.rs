//! Small jobs whose schedules are explored: each protocol, each way to wait,
//! each way to give up.

use super::act::{Act, By, Want};
use super::case::{Case, How, Net, Planned};
use osier_engine::protocol::cost::LinkCosts;
use osier_transports::sim::SimOptions;

/// What must be so before an act of a program.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    Always,
    /// The send is over.
    Sent(usize),
    /// The receive is over.
    Received(usize),
    /// A message that matches waits to be received.
    Sees(usize, Want),
    /// This rank's end of the partitioned transfer is inactive.
    Idle(usize),
}

/// Ranks with a program each.
#[derive(Clone)]
pub(super) struct Scenario {
    pub name: &'static str,
    pub case: Case,
    /// By rank.
    pub programs: Vec<Vec<(When, Act)>>,
    pub ids: usize,
}

pub(super) const TAG: u32 = 5;

pub(super) fn from(source: u32) -> Want {
    Want {
        source: Some(source),
        tag: Some(TAG),
    }
}

pub(super) fn any() -> Want {
    Want {
        source: None,
        tag: Some(TAG),
    }
}

impl Scenario {
    /// A job without traffic. Up to 16 bytes go eagerly, more is announced,
    /// and one message carries 64 bytes.
    fn new(name: &'static str, ranks: u32) -> Self {
        let costs = LinkCosts {
            latency_ns: 0.0,
            overhead_ns: 0.0,
            copy_ns_per_byte: 1.0,
            mapped_ns_per_byte: 1.0,
            attach_call_ns: 0.0,
            attach_ns_per_byte: 1.0,
            leaves_lines: false,
            uses: None,
            device: None,
        };
        let net = Net::from(&SimOptions {
            ranks,
            latency_ns: 0..=0,
            ns_per_byte: 0.0,
            capacity_messages: 4,
            max_payload_bytes: 64,
            inline_bytes: 16,
            held: true,
            ..SimOptions::default()
        });
        Self {
            name,
            case: Case {
                net,
                costs,
                members: vec![(0..ranks).collect()],
                messages: Vec::new(),
                first_sides: Vec::new(),
                parted: Vec::new(),
                checks: 0,
                faults: Vec::new(),
                corruption: false,
                harvests: true,
                acts: Vec::new(),
            },
            programs: vec![Vec::new(); ranks as usize],
            ids: 0,
        }
    }

    /// Everything is eager, in one message or in fragments.
    pub fn eager(mut self) -> Self {
        self.case.net.inline = 4096;
        self
    }

    /// So many messages under way per link.
    pub fn capacity(mut self, messages: usize) -> Self {
        self.case.net.capacity = messages;
        self
    }

    /// Announced messages are not read.
    pub fn without_get(mut self) -> Self {
        self.case.net.get = false;
        self.case.net.put = false;
        self.case.net.atomics = false;
        self
    }

    /// Announced memory is mapped.
    fn mapped(mut self) -> Self {
        self.case.net.mapped = true;
        self
    }

    pub fn todo(&mut self, rank: u32, when: When, act: Act) {
        self.programs[rank as usize].push((when, act));
    }

    pub fn message(
        &mut self,
        from: u32,
        to: u32,
        tag: u32,
        bytes: usize,
        synchronous: bool,
    ) -> usize {
        self.case.messages.push(Planned {
            context: 0,
            from,
            to,
            tag,
            bytes,
            layout: None,
            synchronous,
            how: How::Lane,
        });
        let m = self.case.messages.len() - 1;
        self.todo(from, When::Always, Act::Send(m));
        m
    }

    pub fn send(&mut self, from: u32, to: u32, bytes: usize) -> usize {
        self.message(from, to, TAG, bytes, false)
    }

    pub fn ssend(&mut self, from: u32, to: u32, bytes: usize) -> usize {
        self.message(from, to, TAG, bytes, true)
    }

    pub fn receive(&mut self, rank: u32, want: Want, room: usize) -> usize {
        self.receive_as(rank, want, room, None)
    }

    fn receive_as(&mut self, rank: u32, want: Want, room: usize, layout: Option<usize>) -> usize {
        let id = self.ids;
        self.ids += 1;
        let act = Act::Receive {
            id,
            rank,
            context: 0,
            want,
            layout,
            room,
            direct: false,
            by: By::Lane,
        };
        self.todo(rank, When::Always, act);
        id
    }

    pub fn sent(&mut self, rank: u32, m: usize) {
        self.todo(rank, When::Sent(m), Act::Harvest);
    }

    pub fn received(&mut self, rank: u32, id: usize) {
        self.todo(rank, When::Received(id), Act::Harvest);
    }

    pub fn probe(&mut self, rank: u32, want: Want, takes: bool) -> usize {
        let id = self.ids;
        self.ids += 1;
        let act = Act::Probe {
            id,
            rank,
            context: 0,
            want,
            takes,
        };
        self.todo(rank, When::Sees(0, want), act);
        id
    }

    fn receive_taken(&mut self, rank: u32, id: usize, room: Option<usize>) {
        self.act(rank, Act::ReceiveMatched { id, room });
    }

    pub fn act(&mut self, rank: u32, act: Act) {
        self.todo(rank, When::Always, act);
    }
}

/// Sizes that take a protocol each where nothing is all eager.
pub(super) const SHORT: usize = 8;
pub(super) const LONG: usize = 150;

/// Changes the network of a job.
pub(super) type Shape = fn(Scenario) -> Scenario;

/// The jobs.
pub(super) fn all() -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut add = |name, ranks, shape: Shape, program: &dyn Fn(&mut Scenario)| {
        let mut s = shape(Scenario::new(name, ranks));
        program(&mut s);
        all.push(s);
    };
    let plain: Shape = |s| s;

    // One message after another, to receives in order.
    let stream = |bytes: usize, synchronous: bool| {
        move |s: &mut Scenario| {
            for _ in 0..2 {
                s.message(0, 1, TAG, bytes, synchronous);
                let r = s.receive(1, from(0), bytes);
                s.received(1, r);
            }
        }
    };
    add("short eager", 2, plain, &stream(SHORT, false));
    add(
        "short eager, one credit",
        2,
        |s| s.capacity(1),
        &stream(SHORT, false),
    );
    add("eager", 2, |s| s.eager(), &stream(40, false));
    add("eager fragments", 2, |s| s.eager(), &stream(LONG, false));
    add(
        "eager fragments, one credit",
        2,
        |s| s.eager().capacity(1),
        &stream(LONG, false),
    );
    add("synchronous eager", 2, plain, &stream(SHORT, true));
    add(
        "synchronous fragments",
        2,
        |s| s.eager().capacity(2),
        &stream(LONG, true),
    );
    add(
        "rendezvous by fragments",
        2,
        |s| s.without_get(),
        &stream(LONG, false),
    );
    add(
        "rendezvous by fragments, one credit",
        2,
        |s| s.without_get().capacity(1),
        &stream(LONG, false),
    );
    add("pull", 2, plain, &stream(LONG, false));
    add(
        "pull from mapped memory",
        2,
        |s| s.mapped(),
        &stream(LONG, false),
    );
    add(
        "synchronous pull, one credit",
        2,
        |s| s.capacity(1),
        &stream(LONG, true),
    );
    add("pull into a layout", 2, plain, &|s| {
        s.send(0, 1, 154);
        s.receive_as(1, from(0), 154, Some(2));
    });
    add("shared pull", 2, plain, &|s| {
        s.send(0, 1, 6000);
        s.receive(1, from(0), 6000);
    });
    add("shared pull, given up", 2, plain, &|s| {
        let m = s.send(0, 1, 6000);
        let r = s.receive(1, from(0), 6000);
        s.act(0, Act::RevokeSend(m));
        s.act(1, Act::RevokeReceive(r));
    });

    // What comes before its receive.
    let early = |bytes: usize| {
        move |s: &mut Scenario| {
            let a = s.ssend(0, 1, bytes);
            s.send(0, 1, SHORT);
            s.sent(0, a);
            let r = s.probe(1, from(0), false);
            s.received(1, r);
            s.receive(1, from(0), SHORT);
        }
    };
    add("probe, eager", 2, plain, &early(SHORT));
    add(
        "probe, fragments",
        2,
        |s| s.eager().capacity(2),
        &early(LONG),
    );
    add("probe, announced", 2, plain, &early(LONG));
    let taken = |bytes: usize, room: Option<usize>| {
        move |s: &mut Scenario| {
            s.ssend(0, 1, bytes);
            s.send(0, 1, SHORT);
            let r = s.probe(1, any(), true);
            s.receive(1, from(0), SHORT);
            s.receive_taken(1, r, room);
        }
    };
    add("matched probe, eager", 2, plain, &taken(SHORT, Some(SHORT)));
    add(
        "matched probe, fragments",
        2,
        |s| s.eager(),
        &taken(LONG, Some(LONG)),
    );
    add(
        "matched probe, announced",
        2,
        |s| s.capacity(1),
        &taken(LONG, Some(LONG)),
    );
    add(
        "matched probe, dropped",
        2,
        |s| s.without_get(),
        &taken(LONG, None),
    );
    add("out of credit", 2, |s| s.capacity(1), &|s| {
        for _ in 0..4 {
            s.send(0, 1, SHORT);
        }
        for _ in 0..4 {
            s.receive(1, from(0), SHORT);
        }
    });

    // Any source, any tag.
    let gather = |bytes: usize, synchronous: bool| {
        move |s: &mut Scenario| {
            s.message(0, 2, TAG, bytes, synchronous);
            s.message(1, 2, TAG, bytes, synchronous);
            let r = s.receive(2, any(), bytes);
            s.received(2, r);
            s.receive(2, any(), bytes);
        }
    };
    add("any source, eager", 3, plain, &gather(SHORT, false));
    add("any source, synchronous", 3, plain, &gather(SHORT, true));
    add("any source, pull", 3, plain, &gather(LONG, false));
    add(
        "any source, fragments",
        3,
        |s| s.eager().capacity(1),
        &gather(LONG, false),
    );
    add("four ranks gather", 4, plain, &|s| {
        for rank in 0..3 {
            s.send(rank, 3, SHORT);
            s.receive(3, any(), SHORT);
        }
    });
    add("tags out of order", 2, plain, &|s| {
        s.message(0, 1, 1, SHORT, false);
        s.message(0, 1, 2, LONG, false);
        s.message(0, 1, 1, 12, false);
        let tag = |tag| Want {
            source: Some(0),
            tag,
        };
        s.receive(1, tag(Some(2)), LONG);
        s.receive(1, tag(None), 20);
        s.receive(1, tag(Some(1)), 20);
    });

    // Giving up.
    let revoked = |bytes: usize| {
        move |s: &mut Scenario| {
            let a = s.send(0, 1, bytes);
            s.send(0, 1, SHORT);
            s.act(0, Act::RevokeSend(a));
            let r = s.receive(1, from(0), bytes);
            s.receive(1, from(0), bytes);
            s.act(1, Act::RevokeReceive(r));
        }
    };
    add(
        "revoke, eager without credit",
        2,
        |s| s.capacity(1),
        &revoked(SHORT),
    );
    add(
        "revoke, fragments",
        2,
        |s| s.eager().capacity(1),
        &revoked(LONG),
    );
    add(
        "revoke, rendezvous by fragments",
        2,
        |s| s.without_get().capacity(2),
        &revoked(LONG),
    );
    add("revoke, pull", 2, plain, &revoked(LONG));
    add("revoke, synchronous", 2, plain, &|s| {
        let a = s.ssend(0, 1, SHORT);
        s.act(0, Act::RevokeSend(a));
        let r = s.receive(1, from(0), SHORT);
        s.act(1, Act::RevokeReceive(r));
    });
    add("detach", 2, |s| s.eager().capacity(2), &|s| {
        let a = s.ssend(0, 1, LONG);
        s.act(0, Act::DetachSend(a));
        let r = s.receive(1, from(0), LONG);
        s.act(1, Act::DetachReceive(r));
        s.send(0, 1, SHORT);
        s.receive(1, from(0), LONG);
    });
    let cut = |bytes: usize| {
        move |s: &mut Scenario| {
            s.ssend(0, 1, bytes);
            s.send(0, 1, SHORT);
            s.receive(1, from(0), bytes - 3);
            s.receive(1, from(0), SHORT);
        }
    };
    add("truncation, eager", 2, plain, &cut(SHORT + 4));
    add("truncation, fragments", 2, |s| s.eager(), &cut(LONG));
    add("truncation, announced", 2, |s| s.without_get(), &cut(LONG));
    add("truncation, pull", 2, plain, &cut(LONG));

    // Both ways, in circles, alone.
    let exchange = |bytes: usize| {
        move |s: &mut Scenario| {
            for (rank, peer) in [(0, 1), (1, 0)] {
                let r = s.receive(rank, from(peer), bytes);
                let m = s.ssend(rank, peer, bytes);
                s.sent(rank, m);
                s.received(rank, r);
            }
        }
    };
    add("exchange, eager", 2, |s| s.capacity(1), &exchange(SHORT));
    add(
        "exchange, fragments",
        2,
        |s| s.eager().capacity(1),
        &exchange(LONG),
    );
    add("exchange, pull", 2, |s| s.capacity(1), &exchange(LONG));
    add("ring of three", 3, |s| s.capacity(1), &|s| {
        for rank in 0..3 {
            s.send(rank, (rank + 1) % 3, LONG);
            let r = s.receive(rank, from((rank + 2) % 3), LONG);
            s.received(rank, r);
        }
    });
    add("relay", 3, plain, &|s| {
        s.send(0, 1, SHORT);
        s.send(0, 2, LONG);
        let r = s.receive(1, from(0), SHORT);
        s.received(1, r);
        s.send(1, 2, SHORT);
        let r = s.receive(2, any(), LONG);
        s.received(2, r);
        s.receive(2, any(), LONG);
    });
    let alone = |bytes: usize| {
        move |s: &mut Scenario| {
            let m = s.ssend(0, 0, bytes);
            s.send(0, 0, SHORT);
            let r = s.receive(0, from(0), bytes);
            s.receive(0, from(0), SHORT);
            s.sent(0, m);
            s.received(0, r);
            s.send(1, 0, SHORT);
            s.receive(0, any(), SHORT);
        }
    };
    add("self, eager", 2, plain, &alone(SHORT));
    add("self, announced", 2, plain, &alone(LONG));
    super::jobs::requests(&mut add);
    all
}
