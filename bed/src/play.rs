//! Plays runs, and makes a failure of what breaks a rule.

use super::case::Case;
use super::dice::Rng;
use super::draw::Draw;
use super::plan::Plan;
use super::shrink;
use super::world::{Check, Watch, World};
use super::{Failure, Report, Traffic};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` without the messages of its panics: a run is played again and
/// again while it is cut down.
pub(super) fn quietly<R>(f: impl FnOnce() -> R) -> R {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    let before = QUIET.replace(true);
    let result = f();
    QUIET.set(before);
    result
}

/// Plays something with a world; a panic is a broken rule, too.
pub(super) fn guarded<R>(world: &mut World, f: impl FnOnce(&mut World) -> Check<R>) -> Check<R> {
    let played = catch_unwind(AssertUnwindSafe(|| f(world)));
    played.unwrap_or_else(|panic| {
        let text = match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(other) => match other.downcast::<&str>() {
                Ok(text) => (*text).into(),
                Err(_) => "no text".into(),
            },
        };
        Err(format!("panic: {text}"))
    })
}

/// A panic leaves queues half done; their owner must not fall over them again.
fn abandon(world: World, broken: bool) {
    if broken {
        let _ = catch_unwind(AssertUnwindSafe(move || drop(world)));
    }
}

/// Plays a list of acts.
pub(super) fn play_case(case: &Case, watch: &Watch) -> (Check<Report>, Option<Vec<String>>) {
    let mut world = World::new(case, Rng::Last, watch);
    let result = guarded(&mut world, |world| {
        for act in &case.acts {
            world.perform(*act)?;
        }
        world.conclude()
    });
    let timeline = world.timeline.take().map(|t| t.lines());
    abandon(world, result.is_err());
    (result, timeline)
}

/// Plays the traffic of one seed; with the acts if they are recorded.
fn play_seed(seed: u64, options: &Traffic, watch: &Watch) -> (Check<Report>, Case) {
    let mut rng = Rng::new(seed);
    let plan = Plan::new(&mut rng, seed, options);
    let mut case = plan.case.clone();
    case.faults.extend(&options.faults);
    let mut world = World::new(&case, rng, watch);
    let result = guarded(&mut world, |world| {
        let draw = Draw::new(&plan, world);
        for act in &plan.case.acts {
            world.perform(*act)?;
        }
        draw.play(world)?;
        world.conclude()
    });
    case.acts = world.acts.take().unwrap_or_default();
    abandon(world, result.is_err());
    (result, case)
}

/// Seeds of which every step is checked, not only the end.
const WATCHED: u64 = 16;

/// Plays the traffic of one seed.
///
/// # Errors
/// The first rule of the module's list that was broken, cut down.
pub fn run(seed: u64, options: &Traffic) -> Result<Report, Failure> {
    let each_step = options.every_step || seed.is_multiple_of(WATCHED);
    let watch = Watch {
        each_step,
        ..Watch::default()
    };
    let (result, _) = quietly(|| play_seed(seed, options, &watch));
    let what = match result {
        Ok(report) => return Ok(report),
        Err(what) => what,
    };
    let watch = Watch {
        each_step,
        record: true,
        ..Watch::default()
    };
    let (_, case) = quietly(|| play_seed(seed, options, &watch));
    let origin = format!("seed {seed} of {options:?}");
    Err(failure(case, what, each_step, origin))
}

/// Cuts a failing run down and tells its story.
pub(super) fn failure(case: Case, what: String, each_step: bool, origin: String) -> Failure {
    let acts = case.acts.len();
    let (case, what) = quietly(|| shrink::shrink(case, what, each_step));
    let watch = Watch {
        each_step,
        timeline: true,
        ..Watch::default()
    };
    let (_, timeline) = quietly(|| play_case(&case, &watch));
    Failure {
        what,
        origin: format!("{origin}, {acts} acts"),
        messages: case.messages.len(),
        acts: case.acts.len(),
        ranks: case.net.ranks,
        timeline: timeline.unwrap_or_default(),
        case: case.to_line(),
    }
}

/// Plays the case of a failure again.
///
/// # Errors
/// If the line is no case, or the rule that it breaks.
pub fn replay(line: &str) -> Result<Report, Failure> {
    let no_case = |what: String| Failure {
        what,
        origin: "a line".into(),
        case: line.into(),
        ..Failure::default()
    };
    let case = Case::from_line(line).map_err(no_case)?;
    let watch = Watch {
        each_step: true,
        timeline: true,
        ..Watch::default()
    };
    let (result, timeline) = play_case(&case, &watch);
    result.map_err(|what| Failure {
        what,
        origin: "a line".into(),
        messages: case.messages.len(),
        acts: case.acts.len(),
        ranks: case.net.ranks,
        timeline: timeline.unwrap_or_default(),
        case: line.into(),
    })
}
