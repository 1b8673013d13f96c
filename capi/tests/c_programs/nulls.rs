//! Every function of the interface with nothing behind its pointers, and out of its time: by
//! the table, so that none is forgotten. What is wrong gets an error, or does nothing; no
//! signal ends anybody.

use super::{generate, place, start, text, wrapper};

/// They begin or end something, by their purpose.
const NOT_CALLED: [&str; 5] = [
    "MPI_Init",
    "MPI_Init_thread",
    "MPI_Session_init",
    "MPI_Finalize",
    "MPI_Abort",
];

/// Something of this type that makes sense, or a number that hardly does.
fn sound(parameter: &str) -> &'static str {
    if parameter.contains(['*', '[']) {
        return "0";
    }
    match parameter.split(' ').next().unwrap_or("") {
        "MPI_Comm" => "MPI_COMM_SELF",
        "MPI_Datatype" => "MPI_INT",
        "MPI_Errhandler" => "MPI_ERRORS_RETURN",
        "MPI_Group" => "group",
        "MPI_Info" => "info",
        "MPI_Message" => "MPI_MESSAGE_NULL",
        "MPI_Op" => "MPI_SUM",
        "MPI_Request" => "MPI_REQUEST_NULL",
        "MPI_Session" => "session",
        "int" | "MPI_Aint" | "MPI_Count" | "MPI_Offset" => "77",
        _ => "0",
    }
}

fn parameters(list: &str) -> Vec<&str> {
    match list {
        "" | "void" => Vec::new(),
        list => list.split(',').map(str::trim).collect(),
    }
}

/// What calls all functions, once with zeros and once with what makes some sense.
fn program() -> String {
    let (mut zeros, mut somewhat) = (String::new(), String::new());
    for f in generate::functions().filter(|f| !NOT_CALLED.contains(&f.name)) {
        let (name, parameters) = (f.name, parameters(f.parameters));
        // No null pointer is the null handle of any type, so this is both.
        let none = vec!["0"; parameters.len()].join(", ");
        let some: Vec<_> = parameters.into_iter().map(sound).collect();
        zeros += &format!("    CALL({name}({none}));\n");
        somewhat += &format!("    CALL({name}({}));\n", some.join(", "));
    }
    include_str!("../c/nulls.c.in")
        .replace("/*ZEROS*/\n", &zeros)
        .replace("/*SOME*/\n", &somewhat)
}

#[test]
fn nothing_behind_pointers_and_out_of_time() {
    let Some(place) = place() else { return };
    let (source, out) = (place.join("nulls.c"), place.join("nulls"));
    std::fs::write(&source, program()).expect("a program");
    let tests = super::source("");
    let options = ["-std=gnu11", "-g", "-I", text(&tests), "-o"];
    let files = [text(&out), text(&source)];
    wrapper(place, "mpicc", &[&options[..], &files].concat());
    let (code, stdout, stderr) = start(&out, 1);
    assert_eq!((code, stdout.as_str()), (Some(0), "through\n"), "{stderr}");
}
