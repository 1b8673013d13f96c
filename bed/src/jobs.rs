//! Small jobs with requests of all kinds, as programs hold them: ready and
//! buffered sends, persistent and partitioned requests, exchanges, wait sets,
//! cancelling, generalised requests, intercommunicators.

use super::act::{Act, By, Want};
use super::case::How;
use super::partition::Parted;
use super::scenario::{LONG, SHORT, Scenario, Shape, TAG, When, any, from};

impl Scenario {
    /// A message that is sent in this way.
    fn send_as(&mut self, how: How, from: u32, to: u32, bytes: usize) -> usize {
        let m = self.message(from, to, TAG, bytes, false);
        self.case.messages[m].how = how;
        m
    }

    /// A receive that is posted in this way.
    fn receive_by(&mut self, by: By, rank: u32, want: Want, room: usize) -> usize {
        let id = self.receive(rank, want, room);
        if let Some((_, Act::Receive { by: how, .. })) = self.programs[rank as usize].last_mut() {
            *how = by;
        }
        id
    }

    fn attach(&mut self, rank: u32, bytes: Option<usize>) {
        let context = 0;
        self.act(
            rank,
            Act::Attach {
                rank,
                context,
                bytes,
            },
        );
    }

    fn flush(&mut self, rank: u32) {
        let id = self.next_id();
        let context = 0;
        self.act(rank, Act::Flush { id, rank, context });
    }

    fn next_id(&mut self) -> usize {
        self.ids += 1;
        self.ids - 1
    }

    /// Sends a message, and receives another into its memory.
    fn exchange(&mut self, rank: u32, to: u32, bytes: usize, want: Want) -> usize {
        let m = self.send_as(How::Exchange, rank, to, bytes);
        let id = self.next_id();
        if let Some((_, act)) = self.programs[rank as usize].last_mut() {
            *act = Act::Exchange { m, id, want };
        }
        id
    }

    fn parted(&mut self, from: u32, to: u32, bytes: usize, sends: usize, receives: usize) -> usize {
        self.case.parted.push(Parted {
            context: 0,
            from,
            to,
            tag: TAG,
            bytes,
            sends,
            receives,
        });
        self.case.parted.len() - 1
    }

    /// One start of both ends, each when it is inactive.
    fn part_start(&mut self, q: usize) {
        let Parted {
            from,
            to,
            sends,
            receives,
            ..
        } = self.case.parted[q];
        let started = |(_, act): &(When, Act)| *act == Act::PartReceive(q);
        let when = match self.programs[to as usize].iter().any(started) {
            true => When::Idle(q),
            false => When::Always,
        };
        self.todo(to, when, Act::PartReceive(q));
        self.todo(from, when, Act::PartSend(q));
        // The last comes first.
        for at in (0..sends).rev() {
            self.act(from, Act::PartReady { q, at });
        }
        for at in 0..receives {
            self.act(to, Act::PartLook { q, at });
        }
    }

    /// The first of the ranks on one side, the others on the other.
    fn two_sides(&mut self, first: usize) {
        self.case.first_sides = vec![first];
    }
}

/// Adds a job: its name, its ranks, its network, and what its programs do.
type Add<'a> = dyn FnMut(&'static str, u32, Shape, &dyn Fn(&mut Scenario)) + 'a;

/// Adds the jobs.
pub(super) fn requests(add: &mut Add<'_>) {
    let plain: Shape = |s| s;
    let narrow: Shape = |s| s.capacity(1);

    // A wait set holds what was sent and received by requests.
    let stream = |how: How, by: By, bytes: usize| {
        move |s: &mut Scenario| {
            for _ in 0..2 {
                s.send_as(how, 0, 1, bytes);
                s.receive_by(by, 1, from(0), bytes);
            }
        }
    };
    let requests = |bytes| stream(How::Request, By::Request, bytes);
    add("requests, eager", 2, narrow, &requests(SHORT));
    add(
        "requests, fragments",
        2,
        |s| s.eager().capacity(2),
        &requests(LONG),
    );
    add("requests, pull", 2, plain, &requests(LONG));
    add("requests from any", 3, plain, &|s| {
        for rank in [1, 2] {
            s.send_as(How::Request, rank, 0, SHORT * rank as usize);
        }
        for _ in 0..2 {
            s.receive_by(By::Request, 0, any(), 2 * SHORT);
        }
    });
    add("ready", 2, plain, &|s| {
        let r = s.receive_by(By::Request, 1, from(0), LONG);
        s.send(1, 0, SHORT);
        let go = s.receive(0, from(1), SHORT);
        s.received(0, go);
        s.send_as(How::Ready, 0, 1, LONG);
        s.received(1, r);
    });

    // Buffered: room for both, for one, for none, as it comes.
    let buffered = |room: Option<usize>, bytes: usize| {
        move |s: &mut Scenario| {
            s.attach(0, room);
            s.send_as(How::Buffered, 0, 1, bytes);
            s.send_as(How::Buffered, 0, 1, bytes);
            s.flush(0);
            for _ in 0..2 {
                s.receive(1, from(0), bytes);
            }
        }
    };
    add("buffered, eager", 2, narrow, &buffered(Some(64), SHORT));
    add(
        "buffered, room for one",
        2,
        narrow,
        &buffered(Some(12), SHORT),
    );
    add(
        "buffered, without a limit",
        2,
        narrow,
        &buffered(None, LONG),
    );
    add("buffered, pull", 2, plain, &buffered(Some(2 * LONG), LONG));
    add(
        "buffered, fragments",
        2,
        |s| s.without_get(),
        &buffered(Some(2 * LONG), LONG),
    );
    add(
        "buffered, no room",
        2,
        plain,
        &buffered(Some(LONG - 1), LONG),
    );

    // Persistent: three starts of one request at each end.
    let persistent = |bytes: usize, synchronous: bool| {
        move |s: &mut Scenario| {
            let mut last = None;
            for _ in 0..3 {
                let m = s.message(0, 1, TAG, bytes, synchronous);
                s.case.messages[m].how = How::Persistent(0);
                let r = s.receive_by(By::Persistent(0), 1, from(0), bytes);
                if let Some((m, r)) = last {
                    for (rank, when) in [(0, When::Sent(m)), (1, When::Received(r))] {
                        if let Some((before, _)) = s.programs[rank].last_mut() {
                            *before = when;
                        }
                    }
                }
                last = Some((m, r));
            }
        }
    };
    add("persistent, eager", 2, narrow, &persistent(SHORT, false));
    add(
        "persistent, fragments",
        2,
        |s| s.eager().capacity(2),
        &persistent(LONG, false),
    );
    add("persistent, pull", 2, plain, &persistent(LONG, true));

    // Partitioned: other numbers of partitions at each end, two starts.
    let parted = |bytes: usize, starts: usize| {
        move |s: &mut Scenario| {
            let q = s.parted(0, 1, bytes, 2, 3);
            for _ in 0..starts {
                s.part_start(q);
            }
        }
    };
    add("partitioned, eager", 2, |s| s.eager(), &parted(24, 2));
    add(
        "partitioned, eager, one credit",
        2,
        |s| s.eager().capacity(1),
        &parted(24, 2),
    );
    add(
        "partitioned, setup announced",
        2,
        |s| s.without_get(),
        &parted(24, 1),
    );
    add("partitioned, pull", 2, plain, &parted(300, 2));
    add(
        "partitioned, two of one tag",
        2,
        |s| s.eager().capacity(2),
        &|s| {
            let (a, b) = (s.parted(0, 1, 24, 2, 1), s.parted(0, 1, 24, 1, 2));
            s.part_start(a);
            s.part_start(b);
        },
    );
    // Its sender may be dead by then, and has sent all.
    add("partitioned, asked for late", 2, |s| s.eager(), &|s| {
        let q = s.parted(0, 1, 24, 2, 3);
        s.act(0, Act::PartSend(q));
        s.act(0, Act::PartReady { q, at: 0 });
        s.act(0, Act::PartReady { q, at: 1 });
        s.send(0, 1, SHORT);
        let go = s.receive(1, from(0), SHORT);
        s.received(1, go);
        s.act(1, Act::PartReceive(q));
        s.send(1, 0, SHORT);
        s.receive(0, from(1), SHORT);
    });
    add("partitioned, to itself", 1, plain, &|s| {
        let q = s.parted(0, 0, 24, 2, 2);
        s.part_start(q);
    });

    // Exchanges in one memory.
    let exchange = |bytes: usize| {
        move |s: &mut Scenario| {
            for (rank, peer) in [(0, 1), (1, 0)] {
                s.exchange(rank, peer, bytes, from(peer));
            }
        }
    };
    add("replace, eager", 2, narrow, &exchange(SHORT));
    add(
        "replace, fragments",
        2,
        |s| s.eager().capacity(1),
        &exchange(LONG),
    );
    add("replace, pull", 2, plain, &exchange(LONG));
    add("replace in a ring of three", 3, narrow, &|s| {
        for rank in 0..3 {
            s.exchange(rank, (rank + 1) % 3, SHORT, from((rank + 2) % 3));
        }
    });
    add("replace, truncated", 2, plain, &|s| {
        s.exchange(0, 1, SHORT, from(1));
        s.exchange(1, 0, LONG, from(0));
    });

    // Cancelling while the message comes.
    let cancel = |by: By, bytes: usize| {
        move |s: &mut Scenario| {
            s.ssend(0, 1, bytes);
            let r = s.receive_by(by, 1, from(0), bytes);
            s.act(1, Act::Cancel(r));
            s.receive(1, from(0), bytes);
        }
    };
    add("cancel, eager", 2, plain, &cancel(By::Lane, SHORT));
    add("cancel, in a set", 2, plain, &cancel(By::Request, SHORT));
    add(
        "cancel, fragments",
        2,
        |s| s.eager().capacity(1),
        &cancel(By::Request, LONG),
    );
    add("cancel, pull", 2, plain, &cancel(By::Lane, LONG));
    add(
        "cancel, persistent",
        2,
        plain,
        &cancel(By::Persistent(0), SHORT),
    );

    // The program's own work beside messages.
    let general = |drops: bool| {
        move |s: &mut Scenario| {
            let id = s.next_id();
            s.act(0, Act::Begin { id, rank: 0 });
            s.receive_by(By::Request, 0, from(1), SHORT);
            s.send_as(How::Request, 1, 0, SHORT);
            s.act(0, Act::Finish { id, drops });
        }
    };
    add("generalised", 2, plain, &general(false));
    add("generalised, abandoned", 2, plain, &general(true));

    // From one side to the other.
    let across = |first: usize, bytes: usize| {
        move |s: &mut Scenario| {
            s.two_sides(first);
            s.send(0, 2, bytes);
            s.ssend(2, 0, SHORT);
            s.receive(2, from(0), bytes);
            s.receive(0, any(), SHORT);
        }
    };
    add("intercommunicator, 1 and 2", 3, narrow, &across(1, SHORT));
    add("intercommunicator, 2 and 1", 3, plain, &|s| {
        s.two_sides(2);
        for rank in [0, 1] {
            s.send_as(How::Request, rank, 2, LONG);
            s.receive_by(By::Request, 2, any(), LONG);
        }
    });
}
