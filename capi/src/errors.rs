//! Error handlers, and what codes mean.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::fail::{Fail, Res, argument, get, put, put_text, text};
use crate::faults;
use crate::objects::{ERRHANDLERS, comm, comm_shared, lock, session};
use crate::state;
use crate::windows::{win, win_shared};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// What happens besides returning a code.
#[derive(Clone)]
pub enum Handler {
    Fatal,
    Abort,
    Return,
    User(Arc<UserHandler>),
}

/// A function of C's.
pub struct UserHandler {
    function: usize,
    /// The handle that it had last.
    handle: AtomicUsize,
}

/// A handle's share in a function: as often as it was given out.
pub struct Counted {
    user: Arc<UserHandler>,
    times: AtomicUsize,
}

impl Handler {
    pub fn of(handle: Handle) -> Res<Handler> {
        Ok(match handle {
            MPI_ERRORS_ARE_FATAL => Handler::Fatal,
            MPI_ERRORS_ABORT => Handler::Abort,
            MPI_ERRORS_RETURN => Handler::Return,
            _ => match ERRHANDLERS.get(handle) {
                Some(counted) => Handler::User(counted.user.clone()),
                None => {
                    return Err(Fail::new(
                        MPI_ERR_ERRHANDLER,
                        "a handle that is no error handler",
                    ));
                }
            },
        })
    }

    /// A handle, which the caller frees.
    fn handle(&self) -> Handle {
        match self {
            Handler::Fatal => MPI_ERRORS_ARE_FATAL,
            Handler::Abort => MPI_ERRORS_ABORT,
            Handler::Return => MPI_ERRORS_RETURN,
            Handler::User(user) => {
                let had = user.handle.load(Relaxed);
                if let Some(counted) = ERRHANDLERS.get(had) {
                    counted.times.fetch_add(1, Relaxed);
                    return had;
                }
                new_handle(user.clone())
            }
        }
    }
}

fn new_handle(user: Arc<UserHandler>) -> Handle {
    let handle = ERRHANDLERS.insert(Counted {
        user: user.clone(),
        times: AtomicUsize::new(1),
    });
    user.handle.store(handle, Relaxed);
    handle
}

fn create(function: usize, handle: *mut Handle) -> Res {
    if function == 0 {
        return Err(argument("a null pointer for a function"));
    }
    let user = Arc::new(UserHandler {
        function,
        handle: AtomicUsize::new(MPI_ERRHANDLER_NULL),
    });
    put(handle, new_handle(user))
}

thread_local! {
    /// The last error of this thread, in words.
    static LAST: RefCell<(c_int, String)> = const { RefCell::new((MPI_SUCCESS, String::new())) };
}

/// Takes an error to its handler; the code to return.
#[cold]
pub fn failed(name: &'static str, on: On, fail: Fail) -> c_int {
    let on = fail.object().unwrap_or(on);
    let code = fail.code();
    LAST.with_borrow_mut(|last| *last = (code, format!("{name}: {}", fail.message())));
    let say = || {
        format!(
            "{name}: {} ({})",
            fail.message(),
            class_name(class_of(code))
        )
    };
    raise(on, code, say)
}

/// Whether the program has given `MPI_COMM_SELF` a handler.
static OWN_IS_SET: AtomicBool = AtomicBool::new(false);

/// The handler of errors that have no object: that of `MPI_COMM_SELF`. Before MPI 4.0 it was
/// that of `MPI_COMM_WORLD`: it still is for programs that have set no other.
fn own() -> (Handler, Handle) {
    let is_set = OWN_IS_SET.load(Relaxed);
    let comm = state::predefined_shared(is_set);
    let handler = comm.map_or(Handler::Fatal, |comm| lock(&comm.handler).clone());
    let handle = if is_set {
        MPI_COMM_SELF
    } else {
        MPI_COMM_WORLD
    };
    (handler, handle)
}

fn set_handler(on: Handle, errhandler: Handle) -> Res {
    let handler = Handler::of(errhandler)?;
    *lock(&comm(on)?.handler) = handler;
    if on == MPI_COMM_SELF {
        OWN_IS_SET.store(true, Relaxed);
    }
    Ok(())
}

fn raise(on: On, code: c_int, say: impl FnOnce() -> String) -> c_int {
    let mut setter = "MPI_Comm_set_errhandler";
    let (handler, handle) = match on {
        On::Nobody => return code,
        On::Own => own(),
        // It follows MPI_COMM_WORLD until it has a handler of its own.
        On::Comm(MPI_COMM_SELF) => (own().0, MPI_COMM_SELF),
        On::Comm(handle) => match comm_shared(handle) {
            Ok(comm) => (lock(&comm.handler).clone(), handle),
            Err(_) => own(),
        },
        On::Session(handle) => match session(handle) {
            Ok(session) => (lock(&session.handler).clone(), handle),
            Err(_) => own(),
        },
        On::Win(handle) => match win_shared(handle) {
            Ok(win) => {
                setter = "MPI_Win_set_errhandler";
                (lock(&win.handler).clone(), handle)
            }
            Err(_) => own(),
        },
        On::Given(handler, none) => match Handler::of(handler) {
            Ok(handler) => (handler, none),
            Err(_) => own(),
        },
    };
    match handler {
        Handler::Return => {}
        Handler::User(user) => {
            type Function = unsafe extern "C" fn(*mut Handle, *mut c_int, ...);
            let (mut handle, mut code) = (handle, code);
            // SAFETY: the program gave this address as that of such a function.
            let function = unsafe { std::mem::transmute::<usize, Function>(user.function) };
            // SAFETY: as above.
            unsafe { function(&mut handle, &mut code) };
        }
        Handler::Fatal | Handler::Abort => {
            let rank = state::rank().map_or(String::new(), |rank| format!("rank {rank}: "));
            osier_engine::diagnose::tell(format_args!(
                "{rank}{} (hint: {setter} with MPI_ERRORS_RETURN goes on)",
                say()
            ));
            state::abort(class_of(code).clamp(1, 119));
        }
    }
    code
}

/// Codes that the program has added: their class, and their text.
struct Added {
    codes: BTreeMap<c_int, (c_int, Option<String>)>,
    last: c_int,
}

static ADDED: Mutex<Added> = Mutex::new(Added {
    codes: BTreeMap::new(),
    last: MPI_ERR_LASTCODE,
});

pub fn last_used() -> c_int {
    lock(&ADDED).last
}

fn known(code: c_int) -> bool {
    (0..=MPI_ERR_LASTCODE).contains(&code) || lock(&ADDED).codes.contains_key(&code)
}

/// Classes of the standard, and those of `mpi-ext.h`.
fn classes() -> impl Iterator<Item = &'static (&'static str, c_int)> {
    ERROR_CLASSES.iter().chain(&faults::ERROR_CLASSES)
}

fn class_of(code: c_int) -> c_int {
    match lock(&ADDED).codes.get(&code) {
        Some((class, _)) => *class,
        None if classes().any(|(_, class)| *class == code) => code,
        None => MPI_ERR_UNKNOWN,
    }
}

fn class_name(class: c_int) -> &'static str {
    let found = classes().find(|(_, number)| *number == class);
    found.map_or("a class of the program", |(name, _)| name)
}

fn describe(code: c_int) -> String {
    let added = lock(&ADDED);
    if let Some((_, text)) = added.codes.get(&code) {
        return text.clone().unwrap_or_default();
    }
    drop(added);
    let name = class_name(class_of(code));
    if code == MPI_SUCCESS {
        return "MPI_SUCCESS: no error".into();
    }
    let last = LAST.with_borrow(|last| (last.0 == code).then(|| last.1.clone()));
    match last {
        Some(words) => format!("{name}: {words}"),
        // MPI_ERR_NO_MEM -> no mem
        None => {
            let words = name
                .trim_start_matches("MPI_T_ERR_")
                .trim_start_matches("MPI_ERR_");
            format!("{name}: {}", words.to_lowercase().replace('_', " "))
        }
    }
}

fn add(class: Option<c_int>) -> Res<c_int> {
    if !state::is_active() {
        return Err(state::not_initialised());
    }
    if let Some(class) = class
        && (!known(class) || class_of(class) != class)
    {
        return Err(argument(format!("{class} is no error class")));
    }
    let mut added = lock(&ADDED);
    added.last += 1;
    let code = added.last;
    added.codes.insert(code, (class.unwrap_or(code), None));
    Ok(code)
}

fn remove(code: c_int, class: bool) -> Res {
    let mut added = lock(&ADDED);
    let is_class = added.codes.get(&code).map(|(of, _)| *of == code);
    if is_class != Some(class) {
        return Err(argument(format!("nobody has added {code}")));
    }
    let in_use = added
        .codes
        .iter()
        .any(|(other, (of, _))| *other != code && *of == code);
    if in_use {
        return Err(argument(format!("error class {code} still has codes")));
    }
    if added
        .codes
        .get(&code)
        .is_some_and(|(_, text)| text.is_some())
    {
        return Err(argument(format!("error {code} still has its string")));
    }
    added.codes.remove(&code);
    Ok(())
}

mpi! {
    fn MPI_Comm_create_errhandler(function: usize, errhandler: *mut Handle) on On::Own; {
        create(function, errhandler)?;
    }

    fn MPI_Errhandler_create(function: usize, errhandler: *mut Handle) on On::Own; {
        create(function, errhandler)?;
    }

    fn MPI_Session_create_errhandler(function: usize, errhandler: *mut Handle) on On::Own; {
        create(function, errhandler)?;
    }

    fn MPI_Win_create_errhandler(function: usize, errhandler: *mut Handle) on On::Own; {
        create(function, errhandler)?;
    }

    fn MPI_File_create_errhandler(function: usize, errhandler: *mut Handle) on On::Own; {
        create(function, errhandler)?;
    }

    fn MPI_Comm_set_errhandler(on: Handle, errhandler: Handle) on On::Comm(on); {
        set_handler(on, errhandler)?;
    }

    fn MPI_Errhandler_set(on: Handle, errhandler: Handle) on On::Comm(on); {
        set_handler(on, errhandler)?;
    }

    fn MPI_Comm_get_errhandler(on: Handle, errhandler: *mut Handle) on On::Comm(on); {
        let handler = lock(&comm(on)?.handler).clone();
        put(errhandler, handler.handle())?;
    }

    fn MPI_Errhandler_get(on: Handle, errhandler: *mut Handle) on On::Comm(on); {
        let handler = lock(&comm(on)?.handler).clone();
        put(errhandler, handler.handle())?;
    }

    fn MPI_Session_set_errhandler(on: Handle, errhandler: Handle) on On::Session(on); {
        let handler = Handler::of(errhandler)?;
        *lock(&session(on)?.handler) = handler;
    }

    fn MPI_Session_get_errhandler(on: Handle, errhandler: *mut Handle) on On::Session(on); {
        let handler = lock(&session(on)?.handler).clone();
        put(errhandler, handler.handle())?;
    }

    fn MPI_Win_set_errhandler(on: Handle, errhandler: Handle) on On::Win(on); {
        let handler = Handler::of(errhandler)?;
        *lock(&win(on)?.handler) = handler;
    }

    fn MPI_Win_get_errhandler(on: Handle, errhandler: *mut Handle) on On::Win(on); {
        let handler = lock(&win(on)?.handler).clone();
        put(errhandler, handler.handle())?;
    }

    fn MPI_Win_call_errhandler(on: Handle, code: c_int) on On::Win(on); {
        win(on)?;
        raise(On::Win(on), code, || format!("MPI_Win_call_errhandler: {}", describe(code)));
    }

    fn MPI_Errhandler_free(errhandler: *mut Handle) on On::Own; {
        let handle = get(errhandler)?;
        Handler::of(handle)?;
        if let Some(counted) = ERRHANDLERS.get(handle)
            && counted.times.fetch_sub(1, Relaxed) == 1
        {
            ERRHANDLERS.remove(handle);
        }
        put(errhandler, MPI_ERRHANDLER_NULL)?;
    }

    fn MPI_Comm_call_errhandler(on: Handle, code: c_int) on On::Comm(on); {
        comm(on)?;
        raise(On::Comm(on), code, || format!("MPI_Comm_call_errhandler: {}", describe(code)));
    }

    fn MPI_Session_call_errhandler(on: Handle, code: c_int) on On::Session(on); {
        session(on)?;
        raise(On::Session(on), code, || format!("MPI_Session_call_errhandler: {}", describe(code)));
    }

    fn MPI_Error_class(code: c_int, class: *mut c_int) on On::Own; {
        if !known(code) {
            return Err(argument(format!("{code} is no error code")));
        }
        put(class, class_of(code))?;
    }

    fn MPI_Error_string(code: c_int, string: *mut c_char, length: *mut c_int) on On::Own; {
        if !known(code) {
            return Err(argument(format!("{code} is no error code")));
        }
        put_text(string, MPI_MAX_ERROR_STRING as usize, &describe(code), length)?;
    }

    fn MPI_Add_error_class(class: *mut c_int) on On::Own; {
        put(class, add(None)?)?;
    }

    fn MPI_Add_error_code(class: c_int, code: *mut c_int) on On::Own; {
        put(code, add(Some(class))?)?;
    }

    fn MPI_Add_error_string(code: c_int, string: *const c_char) on On::Own; {
        let words = text(string)?.into_owned();
        match lock(&ADDED).codes.get_mut(&code) {
            Some(entry) => entry.1 = Some(words),
            None => return Err(argument(format!("nobody has added error {code}"))),
        }
    }

    fn MPI_Remove_error_class(class: c_int) on On::Own; {
        remove(class, true)?;
    }

    fn MPI_Remove_error_code(code: c_int) on On::Own; {
        remove(code, false)?;
    }

    fn MPI_Remove_error_string(code: c_int) on On::Own; {
        match lock(&ADDED).codes.get_mut(&code) {
            Some(entry) => entry.1 = None,
            None => return Err(argument(format!("nobody has added error {code}"))),
        }
    }
}
