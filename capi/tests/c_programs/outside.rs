//! The installation as others use it: wrappers, `pkg-config`, CMake, `mpiexec`.

use super::{Ended, build, ended, needs, place, run, source, text, wrapper};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

fn mpiexec(place: &Path, arguments: &[&str]) -> Ended {
    let launcher = place.join("bin/mpiexec");
    let guard = ["-timeout", super::GUARD];
    ended(&run(Command::new(launcher).args(guard).args(arguments)))
}

/// Runs a program on two ranks, which says that all went well.
fn runs(place: &Path, program: &Path) {
    let (code, stdout, stderr) = mpiexec(place, &["-n", "2", text(program)]);
    assert_eq!((code, stdout.as_str()), (Some(0), "through\n"), "{stderr}");
}

#[test]
fn wrappers_say_what_they_do() {
    let Some(place) = place() else { return };
    let (ring, out) = (source("several.c"), place.join("shown"));
    let line = wrapper(place, "mpicc", &["-show", "-o", text(&out), text(&ring)]);
    assert!(line.starts_with("cc -o "), "{line}");
    // What is shown can be run, and does the same.
    let built = run(Command::new("sh").args(["-c", line.trim()]));
    assert!(built.status.success(), "{line}");
    let (code, _, stderr) = mpiexec(place, &[text(&out), "0", "1", "nobody's"]);
    assert_eq!(code, Some(0), "{stderr}");

    let compile = wrapper(place, "mpicc", &["-compile-info"]);
    assert!(compile.contains("-I") && !compile.contains("-lmpi_abi"));
    assert!(wrapper(place, "mpicc", &["-link-info"]).contains("-lmpi_abi"));
    assert!(!wrapper(place, "mpicc", &["-show", "-c", "a.c"]).contains("-lmpi_abi"));
    assert!(wrapper(place, "mpicxx", &["-show"]).starts_with("c++ "));
    for question in ["--version", "-dumpversion", "-v"] {
        let asked = run(Command::new("cc").arg(question));
        let both = [asked.stdout, asked.stderr].concat();
        assert_eq!(
            wrapper(place, "mpicc", &[question]),
            String::from_utf8_lossy(&both)
        );
    }
}

#[test]
fn objects_and_shared_objects() {
    let Some(place) = place() else { return };
    let file = source("shared.c");
    let (object, library, program) = (
        place.join("shared.o"),
        place.join("libshared.so"),
        place.join("shared"),
    );
    let file = text(&file);
    wrapper(place, "mpicc", &["-c", file, "-o", text(&object)]);
    let options = ["-shared", "-fPIC", "-DOBJECT", file, "-o", text(&library)];
    wrapper(place, "mpicc", &options);
    let here = format!("-Wl,-rpath,{}", place.display());
    let parts = [text(&object), text(&library), &here, "-o", text(&program)];
    wrapper(place, "mpicc", &parts);
    runs(place, &program);
}

#[test]
fn programs_in_cpp() {
    let Some(place) = place() else { return };
    if !needs::program("cxx", "c++") {
        return;
    }
    let program = place.join("plus");
    let (file, program) = (source("plus.cpp"), program.as_path());
    let strict = ["-Wall", "-Wextra", "-pedantic", "-Werror"];
    let files = [text(&file), "-o", text(program)];
    wrapper(place, "mpicxx", &[&strict[..], &files].concat());
    runs(place, program);
}

#[test]
fn pkg_config_knows_the_flags() {
    let Some(place) = place() else { return };
    let mut ask = Command::new("pkg-config");
    ask.args(["--cflags", "--libs", "mpi"])
        .env("PKG_CONFIG_PATH", place.join("lib/pkgconfig"));
    if !needs::program("pkg-config", "pkg-config") {
        return;
    }
    let answer = run(&mut ask);
    assert!(answer.status.success(), "{answer:?}");
    let flags = String::from_utf8_lossy(&answer.stdout).into_owned();
    let program = place.join("by-pkg-config");
    let mut compiler = Command::new("cc");
    compiler.arg(source("groups.c")).arg("-o").arg(&program);
    let built = run(compiler.args(flags.split_whitespace()));
    assert!(built.status.success(), "{flags}: {built:?}");
}

#[test]
fn cmake_finds_it() {
    let Some(place) = place() else { return };
    if !needs::program("cmake", "cmake") {
        return;
    }
    let folder = place.join("cmake");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let list = format!(
        "cmake_minimum_required(VERSION 3.15)\n\
         project(t C CXX)\n\
         find_package(MPI REQUIRED COMPONENTS C CXX)\n\
         add_executable(plus {})\n\
         target_link_libraries(plus MPI::MPI_CXX)\n\
         add_executable(shared {1})\n\
         add_library(half SHARED {1})\n\
         target_compile_definitions(half PRIVATE OBJECT)\n\
         target_link_libraries(half MPI::MPI_C)\n\
         target_link_libraries(shared half MPI::MPI_C)\n\
         enable_testing()\n\
         foreach(program plus shared)\n\
         add_test(NAME ${{program}} COMMAND ${{MPIEXEC_EXECUTABLE}} ${{MPIEXEC_NUMPROC_FLAG}} 2\n\
             ${{MPIEXEC_PREFLAGS}} $<TARGET_FILE:${{program}}> ${{MPIEXEC_POSTFLAGS}})\n\
         endforeach()\n\
         if(MPI_C_VERSION VERSION_LESS 5)\n\
             message(FATAL_ERROR \"version ${{MPI_C_VERSION}}\")\n\
         endif()\n",
        source("plus.cpp").display(),
        source("shared.c").display(),
    );
    std::fs::write(folder.join("CMakeLists.txt"), list).expect("a file");
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", place.join("bin").display());
    let done = run(Command::new("sh")
        .args([
            "-ec",
            "cmake -S . -B b; cmake --build b; cd b; ctest --output-on-failure",
        ])
        .env("PATH", path)
        .current_dir(&folder));
    let (code, stdout, stderr) = ended(&done);
    assert_eq!(code, Some(0), "{stdout}\n{stderr}");
    assert!(stdout.contains("100% tests passed"), "{stdout}");
}

#[test]
fn there_is_no_fortran() {
    let Some(place) = place() else { return };
    for name in ["mpifort", "mpif90", "mpif77", "mpif95", "mpifc"] {
        for arguments in [
            &["-o", "ring", "ring.f90"][..],
            &["-show"],
            &["--version"],
            &[],
        ] {
            let done = run(Command::new(place.join("bin").join(name)).args(arguments));
            let (code, stdout, stderr) = ended(&done);
            assert_eq!(
                (code, stdout.as_str()),
                (Some(1), ""),
                "{name} {arguments:?}"
            );
            assert!(
                stderr.starts_with(&format!("{name}: Osier has no Fortran")),
                "{stderr}"
            );
        }
    }
}

/// Another library's Fortran is not taken, by its wrapper or by pkg-config.
#[test]
fn cmake_takes_no_fortran_of_others() {
    let Some(place) = place() else { return };
    if !["cmake", "gfortran"]
        .iter()
        .all(|tool| needs::program(tool, tool))
    {
        return;
    }
    let folder = place.join("cmake-fortran");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("other")).expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("a file");
    let list = |languages: &str| {
        format!(
            "cmake_minimum_required(VERSION 3.15)\n\
             project(t C Fortran)\n\
             find_package(MPI COMPONENTS {languages})\n\
             foreach(language C Fortran)\n\
             message(STATUS \"${{language}} ${{MPI_${{language}}_FOUND}}\")\n\
             endforeach()\n"
        )
    };
    // As much of another library as CMake tries.
    write(
        "other/mpi.f90",
        "subroutine mpi_init(ierror)\n integer :: ierror\n ierror = 0\nend subroutine\n\
         subroutine mpi_finalize(ierror)\n integer :: ierror\n ierror = 0\nend subroutine\n",
    );
    write(
        "other/mpif.h",
        "      integer MPI_VERSION, MPI_SUBVERSION\n      parameter (MPI_VERSION=3, MPI_SUBVERSION=1)\n",
    );
    let other = folder.join("other");
    let flags = format!("-I{0} -L{0} -lother", other.display());
    write(
        "other/mpif90",
        &format!("#!/bin/sh\n[ \"$1\" = -show ] && echo gfortran {flags} && exit\nexit 1\n"),
    );
    write(
        "other/mpi-fort.pc",
        &format!(
            "Name: mpi-fort\nDescription: other\nVersion: 3.1\nLibs: {flags}\nCflags: {flags}\n"
        ),
    );
    let script = "gfortran -c mpi.f90 -o mpi.o; ar rc libother.a mpi.o; chmod +x mpif90";
    let made = run(Command::new("sh").args(["-ec", script]).current_dir(&other));
    assert!(made.status.success(), "{:?}", ended(&made));
    let path = std::env::var("PATH").unwrap_or_default();
    let found = |languages: &str, folders: &[&Path], packages: &Path| {
        write("CMakeLists.txt", &list(languages));
        let _ = std::fs::remove_dir_all(folder.join("b"));
        let folders: Vec<&str> = folders.iter().map(|folder| text(folder)).collect();
        let mut cmake = Command::new("cmake");
        cmake
            .args(["-S", ".", "-B", "b"])
            .env("PATH", format!("{}:{path}", folders.join(":")))
            .env("PKG_CONFIG_PATH", packages)
            .current_dir(&folder);
        let (code, stdout, stderr) = ended(&run(&mut cmake));
        assert_eq!(code, Some(0), "{stdout}\n{stderr}");
        ["C", "Fortran"].map(|language| stdout.contains(&format!("-- {language} TRUE\n")))
    };
    let (bin, none) = (place.join("bin"), folder.join("b"));
    // The other library would be found.
    assert!(found("Fortran", &[&other], &none)[1]);
    assert_eq!(found("C Fortran", &[&bin, &other], &none), [true, false]);
    assert_eq!(found("C Fortran", &[&bin, &other], &other), [true, false]);
}

#[test]
fn several_programs_in_a_job() {
    let Some(program) = build("several") else {
        return;
    };
    let (place, program) = (place().expect("a place"), text(&program));
    let first = [
        "-n", "1", "-env", "WHOSE", "mine", program, "0", "3", "mine",
    ];
    let second = [":", "-n", "1", program, "1", "3", "nobody's"];
    let third = [":", "-np", "1", program, "1", "3", "nobody's"];
    let (code, stdout, stderr) = mpiexec(place, &[&first[..], &second, &third].concat());
    // The number of the third is 2, so this must fail.
    assert_ne!(code, Some(0), "{stdout}{stderr}");
    let second = [":", "-n", "2", program, "1", "3", "nobody's"];
    let (code, stdout, stderr) = mpiexec(place, &[&first[..], &second].concat());
    assert_eq!((code, stdout.as_str()), (Some(0), "through\n"), "{stderr}");
}

#[test]
fn mpiexec_passes_on_what_programs_need() {
    let Some(place) = place() else { return };
    let options = ["-n", "2", "-l", "-genv", "K", "V", "-wdir", "/", "-envall"];
    let script = "pwd; echo $K; exit $((OSIER_RANK * 3))";
    let program = ["--oversubscribe", "-hosts", "localhost", "sh", "-c", script];
    let (code, stdout, _) = mpiexec(place, &[&options[..], &program].concat());
    // Rank 1 fails, perhaps before rank 0 is through.
    assert_eq!(code, Some(3));
    for line in ["[1] /", "[1] V"] {
        assert!(stdout.lines().any(|l| l == line), "{line} in {stdout}");
    }

    let (code, stdout, _) = mpiexec(place, &["sh", "-c", "cat; kill -TERM $$"]);
    assert_eq!((code, stdout.as_str()), (Some(128 + 15), ""));
    let mut command = Command::new(place.join("bin/mpiexec"));
    command.args(["-n", "2", "sh", "-c", "cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("mpiexec");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"for rank 0\n").expect("a line");
    drop(stdin);
    let (code, stdout, _) = ended(&child.wait_with_output().expect("its end"));
    assert_eq!((code, stdout.as_str()), (Some(0), "for rank 0\n"));

    // A job that its time limit ends, and a rank whose death the others survive.
    let mut command = Command::new(place.join("bin/mpiexec"));
    command.args(["-n", "2", "sleep", "100"]);
    let (code, _, stderr) = ended(&run(command.env("MPIEXEC_TIMEOUT", "1")));
    assert_eq!(code, Some(124), "{stderr}");
    let file = place.join("first.pid");
    let _ = std::fs::remove_file(&file);
    // The second waits until the launcher knows of the first one's end.
    let script = "if [ $OSIER_RANK = 0 ]; then echo $$ > $F; exit 3; fi
        until [ -s $F ]; do :; done
        while kill -0 $(cat $F) 2>&-; do :; done
        echo through";
    let first = ["-disable-auto-cleanup", "-genv", "F", text(&file)];
    let options = [&first[..], &["-n", "2", "sh", "-c", script]].concat();
    let (code, stdout, stderr) = mpiexec(place, &options);
    assert_eq!((code, stdout.as_str()), (Some(3), "through\n"), "{stderr}");

    let (code, _, stderr) = mpiexec(place, &["-host", "elsewhere.example", "true"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("is not this machine"), "{stderr}");
}

#[test]
fn ends_that_are_none() {
    let Some(program) = build("ends") else {
        return;
    };
    let (place, program) = (place().expect("a place"), text(&program));
    for (how, wanted) in [("abort", 5), ("kill", 128 + 9), ("exit", 7)] {
        let (code, stdout, stderr) = mpiexec(place, &["-n", "3", program, how]);
        assert_eq!(
            (code, stdout.as_str()),
            (Some(wanted), ""),
            "{how}: {stderr}"
        );
    }
}
