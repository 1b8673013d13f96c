//! What hangs on communicators: names, info, attributes, handlers, codes; and
//! duplicates under way.

use crate::support::{fails, on_all};
use osier::attributes::{CommKeyval, Info};
use osier::communicators::Comparison;
use osier::errors::{ErrorCode, ErrorHandler, Raised};
use osier::testing::{Network, universes_on};
use osier::{ANY_SOURCE, Communicator, Error, ErrorKind, PROC_NULL};
use std::sync::{Arc, Mutex};

#[test]
fn communicator_has_name_that_was_set() {
    on_all(2, |comm| {
        assert_eq!(comm.name(), "MPI_COMM_WORLD");
        let twin = comm.dup().expect("dup");
        assert_eq!(twin.name(), "");
        twin.set_name("pressure solver").expect("short");
        assert_eq!(twin.clone().name(), "pressure solver");
        fails(
            twin.set_name(&"x".repeat(128)),
            ErrorKind::Argument,
            &["128", "at most 127"],
        );
        assert_eq!(twin.name(), "pressure solver");
    });
}

#[test]
fn info_is_kept_where_it_is_understood() {
    on_all(2, |comm| {
        let mut info = Info::new();
        info.set("mpi_assert_no_any_tag", "true").expect("set");
        info.set("colour", "blue").expect("set");
        let twin = comm.dup_with_info(&info).expect("dup");
        assert_eq!(twin.info().get("mpi_assert_no_any_tag"), Some("true"));
        assert_eq!(twin.info().len(), 1);
        assert!(twin.dup().expect("dup").info().is_empty(), "not inherited");
        twin.set_info(&Info::new());
        assert!(twin.info().is_empty());
        let pending = comm.idup_with_info(&info).expect("idup");
        assert_eq!(pending.wait().expect("dup").info().len(), 1);
    });
}

#[test]
fn attributes_are_copied_and_deleted() {
    on_all(2, |comm| {
        let log = Arc::new(Mutex::new(Vec::new()));
        let key = |name: &'static str, copies: bool| {
            let log = log.clone();
            CommKeyval::<u32>::with(
                move |comm: &Communicator, value| {
                    assert!(comm.size() == 2, "the parent");
                    Ok(copies.then(|| Arc::new(**value + 1)))
                },
                move |value| {
                    log.lock().expect("lock").push(format!("{name}{value}"));
                    if *value == 666 {
                        Err("stuck".into())
                    } else {
                        Ok(())
                    }
                },
            )
        };
        let (a, b, c) = (key("a", true), key("b", true), key("c", false));
        let first = comm.dup().expect("dup");
        let attributes = first.attributes();
        attributes.set(&a, 1).expect("set");
        attributes.set(&b, 5).expect("set");
        attributes.set(&c, 9).expect("set");
        let second = first.dup().expect("dup");
        assert_eq!(second.attributes().get(&a).as_deref(), Some(&2));
        assert_eq!(second.attributes().get(&b).as_deref(), Some(&6));
        assert_eq!(second.attributes().get(&c), None);
        let third = second.split(Some(0), 0).expect("split").expect("a color");
        assert!(third.attributes().is_empty(), "only duplicates inherit");
        drop(second);
        assert_eq!(*log.lock().expect("lock"), ["b6", "a2"], "in reverse order");
        drop((third, first));
        assert_eq!(log.lock().expect("lock")[2..], ["c9", "b5", "a1"]);
        // A copy function that fails: no duplicate here, and nobody hangs.
        let broken = CommKeyval::<u8>::with(
            |comm: &Communicator, _| match comm.rank() {
                0 => Err("cannot be copied".into()),
                _ => Ok(None),
            },
            |_| Ok(()),
        );
        comm.attributes().set(&broken, 0).expect("set");
        let made = comm.dup();
        match comm.rank() {
            0 => drop(fails(made, ErrorKind::Attribute, &["cannot be copied"])),
            _ => assert!(made.is_ok()),
        }
        assert!(comm.attributes().delete(&broken).expect("delete"));
        comm.dup().expect("dup").barrier().expect("barrier");
    });
}

#[test]
fn predefined_attributes() {
    on_all(2, |comm| {
        let known = comm.predefined_attributes();
        assert_eq!(known.tag_ub, i32::MAX as u32);
        comm.sendrecv(
            &1u8,
            comm.rank(),
            known.tag_ub,
            &mut 0u8,
            comm.rank(),
            known.tag_ub,
        )
        .expect("the largest tag");
        assert_eq!((known.host, known.io), (None, ANY_SOURCE));
        assert_eq!(known.universe_size, 2);
        assert_eq!(known.last_used_code, ErrorCode::LAST_PREDEFINED);
    });
}

type Seen = Arc<Mutex<Vec<String>>>;

fn noting(seen: &Seen, name: &'static str) -> ErrorHandler {
    let seen = seen.clone();
    ErrorHandler::custom(move |raised, e: &Error| {
        let place = match raised {
            Raised::Communicator(comm) => comm.size(),
            _ => 0,
        };
        seen.lock()
            .expect("lock")
            .push(format!("{name} {place} {:?}", e.kind()));
    })
}

#[test]
fn handlers_run_beside_results() {
    on_all(2, |comm| {
        let seen = Seen::default();
        let take = || std::mem::take(&mut *seen.lock().expect("lock"));
        assert_eq!(comm.error_handler(), ErrorHandler::Return);
        fails(comm.cart_create(&[9], &[true]), ErrorKind::Argument, &[]);
        assert!(take().is_empty());
        comm.set_error_handler(noting(&seen, "world"));
        fails(comm.cart_create(&[9], &[true]), ErrorKind::Argument, &[]);
        assert_eq!(take(), ["world 2 Argument"]);
        // Inherited, then replaced.
        let twin = comm.dup().expect("dup");
        let half = twin
            .split(Some(comm.rank() as u32), 0)
            .expect("split")
            .expect("a color");
        fails(half.bcast(&mut [0u8], 3), ErrorKind::Rank, &[]);
        assert_eq!(take(), ["world 1 Rank"], "once");
        assert_eq!(half.error_handler(), comm.error_handler());
        half.set_error_handler(noting(&seen, "half"));
        fails(half.bcast(&mut [0u8], 3), ErrorKind::Rank, &[]);
        fails(comm.bcast(&mut [0u8], PROC_NULL), ErrorKind::Rank, &[]);
        assert_eq!(take(), ["half 1 Rank", "world 2 Rank"]);
        fails(
            half.dup().expect("dup").merge(true),
            ErrorKind::Argument,
            &[],
        );
        assert_eq!(take(), ["half 1 Argument"]);
        // Point-to-point, with its arguments and at its end.
        let me = comm.rank();
        fails(half.send(&[0u8], 1, 0), ErrorKind::Rank, &[]);
        fails(half.recv(&mut [0u8], 0, -1), ErrorKind::Tag, &[]);
        fails(half.isend(vec![0u8], 1, 0).map(drop), ErrorKind::Rank, &[]);
        let mut room = [0u8];
        fails(
            half.scope(|s| s.irecv(&mut room, 1, 0).map(drop)),
            ErrorKind::Rank,
            &[],
        );
        assert_eq!(take().len(), 4);
        comm.send(&[1u8, 2], me, 0).expect("send");
        fails(comm.recv(&mut [0u8], me, 0), ErrorKind::Truncated, &[]);
        comm.send(&[1u8, 2], me, 0).expect("send");
        let request = comm.irecv(vec![0u8], me, 0).expect("irecv");
        fails(request.wait().map(drop), ErrorKind::Truncated, &[]);
        assert_eq!(take(), ["world 2 Truncated", "world 2 Truncated"]);
        // By hand; an error passes a handler once.
        let e = half.raise(Error::new(ErrorKind::System, "flux"));
        assert_eq!((e.to_string().as_str(), take().len()), ("flux", 1));
        let e = comm.raise(e);
        assert!(take().is_empty());
        drop(e);
        comm.set_error_handler(ErrorHandler::Return);
        comm.barrier().expect("barrier");
    });
}

#[test]
fn sessions_have_handlers_and_codes() {
    for network in Network::all() {
        universes_on(&network, 2, |universe| {
            let seen = Seen::default();
            let take = || std::mem::take(&mut *seen.lock().expect("lock"));
            let (session, other) = (universe.session(), universe.session());
            session.set_error_handler(noting(&seen, "session"));
            fails(session.group("x"), ErrorKind::Argument, &[]);
            fails(other.group("x"), ErrorKind::Argument, &[]);
            assert_eq!(take(), ["session 0 Argument"]);
            let group = session.group("mpi://WORLD").expect("world");
            let comm = session.create_from_group(&group, "x").expect("made");
            fails(comm.cart_create(&[3], &[true]), ErrorKind::Argument, &[]);
            assert_eq!(take(), ["session 2 Argument"]);
            // Codes belong to this rank's membership; sessions share it.
            let codes = universe.error_codes();
            let class = codes.add_class().expect("class");
            codes.set_text(class, "the flux is negative").expect("text");
            let e = comm.raise(session.error_codes().error(class));
            assert_eq!(e.to_string(), "the flux is negative");
            assert_eq!((e.kind(), e.code()), (ErrorKind::User, Some(class)));
            assert_eq!(take(), ["session 2 User"]);
            assert_eq!(comm.predefined_attributes().last_used_code, class.number());
        });
    }
}

#[test]
fn pending_duplicates_may_be_waited_for_in_any_order() {
    on_all(3, |comm| {
        // Several at once, waited for in any order, some given up.
        let mut pending: Vec<_> = (0..6).map(|_| Some(comm.idup().expect("idup"))).collect();
        let mut made = Vec::new();
        for i in [3, 0, 5] {
            let mut one = pending[i].take().expect("pending");
            while comm.rank() == 1 && !one.test() {
                std::thread::yield_now();
            }
            made.push(one.wait().expect("dup"));
        }
        drop(pending);
        made.push(comm.dup().expect("dup"));
        made.push(comm.idup().expect("idup").wait().expect("dup"));
        for one in &made {
            assert_eq!(one.compare(&comm), Comparison::Congruent);
            let mut contexts = vec![0; 3];
            one.allgather(&[one.context()], &mut contexts)
                .expect("allgather");
            assert_eq!(contexts, [one.context(); 3]);
        }
        // It does not wait: rank 0 may come last.
        let pending = (comm.rank() != 0).then(|| comm.idup().expect("idup"));
        comm.barrier().expect("barrier");
        let pending = pending.unwrap_or_else(|| comm.idup().expect("idup"));
        pending.wait().expect("dup").barrier().expect("barrier");
    });
}
