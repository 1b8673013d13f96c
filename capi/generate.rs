//! From the tables of the ABI to everything that follows from them: the header, the
//! constants in Rust, the bodies of what is missing, the page on coverage.
//!
//! Used by the build script, by the tests (which compare what is checked in) and by
//! `cargo xtask abi` (which writes it).
//!
//! # Sources
//! MPI 5.0, chapter 20 (the application binary interface) and appendix A (names and
//! signatures); `abi/*.tsv` hold these facts.

use std::collections::BTreeSet;
use std::fmt::Write;

/// A function of the ABI.
pub struct Function<'a> {
    pub name: &'a str,
    pub chapter: &'a str,
    /// How many programs want it: `apps29`, ..., `rest`; `removed`: of MPI-1 only.
    pub rung: &'a str,
    pub returns: &'a str,
    pub parameters: &'a str,
}

const FUNCTIONS: &str = include_str!("abi/functions.tsv");
const CONSTANTS: &str = include_str!("abi/constants.tsv");
const CALLBACKS: &str = include_str!("abi/callbacks.tsv");
/// What works in part, and what is lacking.
const PARTIAL: &str = include_str!("abi/partial.tsv");
/// What programs of others do, written by hand.
const PROGRAMS: &str = include_str!("abi/programs.md");
/// What `cargo xtask suites` has found.
pub const SUITES: &str = include_str!("abi/suites.tsv");
/// Its first line.
pub const SUITES_HEAD: &str = "suite\tpart\tversion\tosier\tranks\tpassed\tof\tfailed";

fn rows<const N: usize>(table: &str) -> impl Iterator<Item = [&str; N]> {
    table.lines().skip(1).map(|line| {
        let mut cells = line.split('\t');
        std::array::from_fn(|_| cells.next().unwrap_or(""))
    })
}

/// All functions, in the order of their names.
pub fn functions() -> impl Iterator<Item = Function<'static>> {
    rows(FUNCTIONS).map(|[name, chapter, rung, returns, parameters]| Function {
        name,
        chapter,
        rung,
        returns,
        parameters,
    })
}

/// Names of the functions that a source file defines: what stands between `fn` and the
/// parenthesis (or colon, in a list of a macro) where a line begins with `fn MPI_`, or
/// `hot fn MPI_`.
pub fn defined(source: &str) -> impl Iterator<Item = &str> {
    source
        .lines()
        .map(|line| line.trim_start())
        .map(|line| line.strip_prefix("hot ").unwrap_or(line))
        .filter_map(|line| line.strip_prefix("fn "))
        .filter(|rest| rest.starts_with("MPI_"))
        .flat_map(|rest| {
            let names = rest.split(['(', '<', ':', ';']).next().unwrap_or("");
            names.split(',').map(str::trim)
        })
}

/// Handles and other pointers: the type of a constant of this kind, if it is one.
fn handle_type(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "op" => "MPI_Op",
        "comm" => "MPI_Comm",
        "group" => "MPI_Group",
        "win" => "MPI_Win",
        "file" => "MPI_File",
        "session" => "MPI_Session",
        "message" => "MPI_Message",
        "info" => "MPI_Info",
        "errhandler" => "MPI_Errhandler",
        "request" => "MPI_Request",
        "datatype" => "MPI_Datatype",
        _ => return None,
    })
}

fn c_type(kind: &str, name: &str) -> Option<&'static str> {
    handle_type(kind).or(match kind {
        "buffer_address" => Some("void*"),
        "file_offset" => Some("MPI_Offset"),
        "ignored_pointer" | "callback_sentinel" | "t_handle" => Some(match name {
            "MPI_ARGV_NULL" => "char**",
            "MPI_ARGVS_NULL" => "char***",
            "MPI_STATUS_IGNORE" | "MPI_STATUSES_IGNORE" => "MPI_Status*",
            "MPI_NULL_COPY_FN" | "MPI_DUP_FN" => "MPI_Copy_function*",
            "MPI_NULL_DELETE_FN" => "MPI_Delete_function*",
            "MPI_COMM_NULL_COPY_FN" | "MPI_COMM_DUP_FN" => "MPI_Comm_copy_attr_function*",
            "MPI_COMM_NULL_DELETE_FN" => "MPI_Comm_delete_attr_function*",
            "MPI_TYPE_NULL_COPY_FN" | "MPI_TYPE_DUP_FN" => "MPI_Type_copy_attr_function*",
            "MPI_TYPE_NULL_DELETE_FN" => "MPI_Type_delete_attr_function*",
            "MPI_WIN_NULL_COPY_FN" | "MPI_WIN_DUP_FN" => "MPI_Win_copy_attr_function*",
            "MPI_WIN_NULL_DELETE_FN" => "MPI_Win_delete_attr_function*",
            "MPI_CONVERSION_FN_NULL" => "MPI_Datarep_conversion_function*",
            "MPI_CONVERSION_FN_NULL_C" => "MPI_Datarep_conversion_function_c*",
            "MPI_T_ENUM_NULL" => "MPI_T_enum",
            "MPI_T_CVAR_HANDLE_NULL" => "MPI_T_cvar_handle",
            "MPI_T_PVAR_SESSION_NULL" => "MPI_T_pvar_session",
            "MPI_T_PVAR_HANDLE_NULL" | "MPI_T_PVAR_ALL_HANDLES" => "MPI_T_pvar_handle",
            _ => "int*",
        }),
        _ => None,
    })
}

/// The header `mpi.h`.
pub fn header() -> String {
    let mut h = String::from(HEAD);
    for kind in [
        "Comm",
        "Datatype",
        "Errhandler",
        "File",
        "Group",
        "Info",
        "Message",
        "Op",
        "Request",
        "Session",
        "Win",
    ] {
        let _ = writeln!(h, "typedef struct MPI_ABI_{kind} *MPI_{kind};");
    }
    for kind in [
        "enum",
        "cvar_handle",
        "pvar_handle",
        "pvar_session",
        "event_registration",
        "event_instance",
    ] {
        let _ = writeln!(h, "typedef struct MPI_T_ABI_{kind} *MPI_T_{kind};");
    }
    for (kind, name) in [
        ("t_cb_safety", "MPI_T_cb_safety"),
        ("t_source_order", "MPI_T_source_order"),
    ] {
        let _ = write!(h, "typedef enum {name} {{");
        for [_, constant, value] in rows::<3>(CONSTANTS).filter(|row| row[0] == kind) {
            let _ = write!(h, " {constant} = {value},");
        }
        h.pop();
        let _ = writeln!(h, " }} {name};");
    }
    h.push('\n');
    for [name, returns, parameters] in rows::<3>(CALLBACKS) {
        let _ = writeln!(h, "typedef {returns} ({name})({parameters});");
    }
    for kind in ["Comm", "File", "Win", "Session"] {
        let _ = writeln!(
            h,
            "typedef MPI_{kind}_errhandler_function MPI_{kind}_errhandler_fn;"
        );
    }
    let mut before = "";
    for [kind, name, value] in rows::<3>(CONSTANTS) {
        if matches!(kind, "t_cb_safety" | "t_source_order") {
            continue;
        }
        if kind != before {
            h.push('\n');
            before = kind;
        }
        let _ = match c_type(kind, name) {
            Some(ty) => writeln!(h, "#define {name} (({ty}) {value})"),
            None if value.starts_with('-') => writeln!(h, "#define {name} ({value})"),
            None => writeln!(h, "#define {name} {value}"),
        };
    }
    h.push('\n');
    for twin in ["", "P"] {
        for f in functions().filter(|f| f.rung != "removed") {
            let _ = writeln!(h, "{} {twin}{}({});", f.returns, f.name, f.parameters);
        }
        h.push('\n');
    }
    h.push_str("/* Removed from MPI, kept for old programs. */\n");
    for f in functions().filter(|f| f.rung == "removed") {
        let _ = writeln!(h, "{} {}({});", f.returns, f.name, f.parameters);
    }
    h.push_str(TAIL);
    h
}

const HEAD: &str = "/* mpi.h of Osier: the standard ABI of MPI 5.0, for libmpi_abi.so.1.
 * Generated by `cargo xtask abi` from capi/abi/; do not edit. */
#ifndef OSIER_MPI_H
#define OSIER_MPI_H

#include <stddef.h>
#include <stdint.h>

#define MPI_ABI 1
#define OSIER 1

#ifdef __cplusplus
extern \"C\" {
#endif

typedef intptr_t MPI_Aint;
typedef int64_t MPI_Offset;
typedef int64_t MPI_Count;

typedef struct MPI_Status {
    int MPI_SOURCE;
    int MPI_TAG;
    int MPI_ERROR;
    int MPI_internal[5];
} MPI_Status;

";

const TAIL: &str = "
#ifdef __cplusplus
}
#endif

#endif
";

/// The constants in Rust: handles and addresses as `usize`, the rest as `c_int`.
pub fn constants() -> String {
    let mut rust = String::new();
    for [kind, name, value] in rows::<3>(CONSTANTS) {
        let ty = match c_type(kind, name) {
            Some("MPI_Offset") => "i64",
            Some(_) => "usize",
            None => "c_int",
        };
        let _ = writeln!(rust, "pub const {name}: {ty} = {value};");
    }
    // For the names of error classes and predefined types.
    for (table, wanted) in [("ERROR_CLASSES", "error_class"), ("DATATYPES", "datatype")] {
        let ty = if wanted == "datatype" {
            "usize"
        } else {
            "c_int"
        };
        let _ = writeln!(rust, "pub const {table}: &[(&str, {ty})] = &[");
        for [kind, name, value] in rows::<3>(CONSTANTS) {
            if kind == wanted || (wanted == "error_class" && kind == "t_error_class") {
                let _ = writeln!(rust, "    ({name:?}, {value}),");
            }
        }
        rust.push_str("];\n");
    }
    rust
}

/// Bodies for the functions that no source file defines.
pub fn missing(defined: &BTreeSet<&str>) -> String {
    let mut rust = String::from("missing! {\n");
    for f in functions().filter(|f| !defined.contains(f.name)) {
        let _ = writeln!(rust, "    {}", f.name);
    }
    rust.push_str("}\n");
    rust
}

/// The rows of a table of suites.
pub fn suite_rows(table: &str) -> impl Iterator<Item = [&str; 8]> {
    rows(table)
}

/// The table of programs of others, between its markers.
fn suites(table: &str) -> String {
    let mut text = String::from(
        "<!-- begin: cargo xtask suites -->\n\
         | suite | version | part | ranks | passed | failed | Osier of |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for [suite, part, version, osier, ranks, passed, of, failed] in suite_rows(table) {
        let failed = if failed.is_empty() { "-" } else { failed };
        let _ = writeln!(
            text,
            "| {suite} | {version} | {part} | {ranks} | {passed} of {of} | {failed} | {osier} |"
        );
    }
    text.push_str("<!-- end: cargo xtask suites -->\n");
    text
}

/// Where the table of suites goes in the text that is written by hand.
const SUITES_HERE: &str = "<!-- suites -->\n";

/// The page on coverage, with these results of programs of others.
pub fn coverage(defined: &BTreeSet<&str>, suites_table: &str) -> String {
    let partial: Vec<[&str; 2]> = rows(PARTIAL).collect();
    let mut page = String::from(COVERAGE_HEAD);
    let mut chapters: Vec<&str> = functions().map(|f| f.chapter).collect();
    chapters.sort_unstable();
    chapters.dedup();
    let lacks = |name: &str| partial.iter().find(|row| row[0] == name).map(|row| row[1]);
    let state = |f: &Function<'_>| match (defined.contains(f.name), lacks(f.name)) {
        (false, _) => 2,
        (true, Some(_)) => 1,
        (true, None) => 0,
    };
    page.push_str("| chapter | implemented | partial | missing |\n|---|---|---|---|\n");
    let mut totals = [0; 3];
    for chapter in &chapters {
        let mut counts = [0; 3];
        for f in functions().filter(|f| f.chapter == *chapter) {
            counts[state(&f)] += 1;
            totals[state(&f)] += 1;
        }
        let [a, b, c] = counts;
        let _ = writeln!(page, "| {chapter} | {a} | {b} | {c} |");
    }
    let [a, b, c] = totals;
    let _ = writeln!(page, "| all | {a} | {b} | {c} |");
    for chapter in chapters {
        let _ = writeln!(page, "\n## {chapter}\n");
        for (at, what) in ["Implemented", "Partial", "Missing"].iter().enumerate() {
            let names: Vec<String> = functions()
                .filter(|f| f.chapter == chapter && state(f) == at)
                .map(|f| match lacks(f.name) {
                    Some(why) if at == 1 => format!("`{}` ({why})", f.name),
                    _ => format!("`{}`", f.name),
                })
                .collect();
            if !names.is_empty() {
                let _ = writeln!(page, "{what}: {}.\n", names.join(", "));
            }
        }
        page.truncate(page.trim_end().len());
        page.push('\n');
    }
    page.push('\n');
    page.push_str(&PROGRAMS.replace(SUITES_HERE, &suites(suites_table)));
    page
}

const COVERAGE_HEAD: &str = "# What of MPI's C interface is there

Generated by `cargo xtask abi` from `capi/abi/functions.tsv` and the sources of `capi/`. All
functions are exported, with their `PMPI_` twins. A missing one returns
`MPI_ERR_UNSUPPORTED_OPERATION` and says so once. What programs of others do on this library
stands [at the end](#programs-of-others).

";
