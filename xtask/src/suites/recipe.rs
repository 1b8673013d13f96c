//! How programs of others are built and tested: lines for the shell, with `mpicc`, `mpicxx` and
//! `mpiexec` of the installation on PATH and its folder in `PREFIX`.

/// A suite.
pub struct Recipe {
    /// On the command line.
    pub name: &'static str,
    /// In the table.
    pub title: &'static str,
    /// What of it is run, in the table; `{folder}` is the first part of a test's name.
    pub part: &'static str,
    /// Builds it; runs again on what is built.
    pub build: &'static str,
    /// Prints its tests: a name, or a name, a tabulator and a command, per line.
    pub list: &'static str,
    /// Runs one of them, `{}`, or `{command}`; succeeds if it passes.
    pub run: &'static str,
    pub ranks: &'static str,
    /// Time limit of each test.
    pub seconds: u64,
}

const ALL: [Recipe; 9] = [
    Recipe {
        name: "osu",
        title: "OSU micro-benchmarks",
        part: "point-to-point, collectives and start, answers compared (`-c`); one-sided, each window and synchronization",
        build: "test -f Makefile || ./configure CC=mpicc CXX=mpicxx --enable-silent-rules
make -k",
        list: "find c/mpi/pt2pt c/mpi/collective c/mpi/startup c/mpi/one-sided -type f -perm -u+x -name 'osu_*' | sort",
        run: "case {} in
*startup*) mpiexec -n 2 {};;
*one-sided*) for w in create allocate dynamic; do
case {} in *put_bibw) all='pscw fence';; *) all='pscw fence lock lock_all flush flush_local';; esac
for s in $all; do mpiexec -n 2 {} -w $w -s $s -i 20 -x 2 -m :65536 || exit 1; done; done;;
*) mpiexec -n 2 {} -c -i 20 -x 2 -m :65536 > osu.out && ! grep -q Fail osu.out;;
esac",
        ranks: "2",
        seconds: 120,
    },
    Recipe {
        name: "miniAMR",
        title: "miniAMR",
        part: "`ref`: a moving and a growing sphere, sums of all variables compared each step",
        build: "make -C ref",
        list: "one='--num_refine 2 --max_blocks 2000 --num_tsteps 8 --checksum_freq 1'
grow='--num_objects 1 --object 2 0 -0.01 -0.01 -0.01 0 0 0 0 0 0 0.0009 0.0009 0.0009'
move='--num_objects 1 --object 2 0 -1.71 -1.71 -1.71 0.04 0.04 0.04 1.7 1.7 1.7 0 0 0'
printf 'growing sphere, 4 ranks\\t-n 4 ref/miniAMR.x --npx 2 --npy 2 --npz 1 %s %s\\n' \"$one\" \"$grow\"
printf 'moving sphere, 4 ranks\\t-n 4 ref/miniAMR.x --npx 1 --npy 2 --npz 2 %s %s\\n' \"$one\" \"$move\"
printf 'moving sphere, 2 ranks, nonblocking refinement\\t-n 2 ref/miniAMR.x --npx 2 --npy 1 --npz 1 %s %s --uniform_refine 0 --refine_freq 2\\n' \"$one\" \"$move\"",
        run: "mpiexec {command} | tee miniAMR.out && grep -q 'Summary: .* ts 8 ' miniAMR.out",
        ranks: "2, 4",
        seconds: 180,
    },
    Recipe {
        name: "AMG",
        title: "AMG",
        part: "problems 1 and 2, converged",
        build: "make",
        list: "for p in 1 2; do for n in '1 1 1' '2 1 1' '2 2 1'; do
set -- $n; ranks=$(($1 * $2 * $3))
printf 'problem %s, %s ranks\\t-n %s test/amg -P %s -n 16 16 16 -problem %s\\n' $p $ranks $ranks \"$n\" $p
done; done",
        run: "OMP_NUM_THREADS=1 mpiexec {command} | tee amg.out &&
awk '/Final Relative Residual Norm/ { ok = $NF < 1e-6 } END { exit !ok }' amg.out",
        ranks: "1, 2, 4",
        seconds: 180,
    },
    Recipe {
        name: "hypre",
        title: "hypre",
        part: "own tests of `{folder}` (`runtest.sh`)",
        build: "cd src && { test -f config/Makefile.config ||
./configure --disable-fortran --without-fei CC=mpicc CXX=mpicxx CFLAGS=-O1; } && make && make -C test",
        list: "cd src/test && ls TEST_struct/*.sh TEST_sstruct/*.sh TEST_ij/*.sh | sed 's/[.]sh$//'",
        run: "cd src/test && rm -f {}.err && ./runtest.sh -mpi 'mpiexec -n' -rtol 1e-3 -atol 1e-3 {}.sh &&
if test -s {}.err; then cat {}.err; false; fi",
        ranks: "as its scripts say, 1 to 9",
        seconds: 300,
    },
    Recipe {
        name: "superlu_dist",
        title: "SuperLU_DIST",
        part: "own tests (`ctest`), without ParMETIS",
        build: "test -f build/Makefile || cmake -S . -B build -DCMAKE_C_COMPILER=mpicc -DCMAKE_CXX_COMPILER=mpicxx \
-DTPL_ENABLE_PARMETISLIB=OFF -DTPL_ENABLE_INTERNAL_BLASLIB=ON -Denable_openmp=OFF -DXSDK_ENABLE_Fortran=OFF \
-Denable_tests=ON -DCMAKE_BUILD_TYPE=Release
make -C build",
        list: "cd build && ctest -N | sed -n 's/^ *Test *#[0-9]*: //p'",
        run: "cd build && ctest -R '^{}$' --output-on-failure",
        ranks: "1 to 15",
        seconds: 180,
    },
    Recipe {
        name: "p4est",
        title: "p4est, with its libsc",
        part: "own tests (`make check`), libsc's first",
        build: "test -f configure || ./bootstrap
test -f Makefile || ./configure --enable-mpi --disable-mpiio CC=mpicc CXX=mpicxx CFLAGS=-O1
make && make check TESTS=",
        list: "find . -path '*test*' -type f -perm -u+x \\( -name 'sc_test_*' -o -name 'p?est_test_*' \\) ! -path '*/.libs/*' | sort",
        run: "mpiexec -n 3 {}",
        ranks: "3",
        seconds: 180,
    },
    Recipe {
        name: "parsec",
        title: "PaRSEC",
        part: "own tests with several ranks (`ctest`)",
        build: "test -f build/Makefile || cmake -S . -B build -DCMAKE_C_COMPILER=mpicc -DCMAKE_CXX_COMPILER=mpicxx \
-DPARSEC_DIST_WITH_MPI=ON -DSUPPORT_FORTRAN=OFF -DPARSEC_GPU_WITH_CUDA=OFF -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=ON
make -C build",
        list: "cd build && ctest -N | sed -n 's/^ *Test *#[0-9]*: //p' | grep ':mp'",
        run: "cd build && ctest -R '^{}$' --output-on-failure",
        ranks: "2 to 8",
        seconds: 180,
    },
    Recipe {
        name: "parmetis",
        title: "ParMETIS",
        part: "own test program `ptest`: partitions, refinements and moves of a grid; each cut counted again",
        build: "set -e
local=$PWD/local
export CFLAGS='-DMPI_Fint=int -DMPI_Comm_f2c=MPI_Comm_fromint'
test -d GKlib/build || cmake -S GKlib -B GKlib/build -DCMAKE_INSTALL_PREFIX=$local -DGKLIB_BUILD_APPS=OFF
make -C GKlib/build install
test -d METIS/build || make -C METIS config prefix=$local gklib_path=$local
make -C METIS/build install
test -d build || make config prefix=$local gklib_path=$local metis_path=$local
make -C build/*
awk 'BEGIN { n = 16; print n * n * n, 3 * n * n * (n - 1) > \"grid.graph\"
for (v = 0; v < n * n * n; v++) { x = v % n; y = int(v / n) % n; z = int(v / n / n); line = \"\"
if (x) line = line \" \" v; if (x < n - 1) line = line \" \" v + 2
if (y) line = line \" \" v + 1 - n; if (y < n - 1) line = line \" \" v + 1 + n
if (z) line = line \" \" v + 1 - n * n; if (z < n - 1) line = line \" \" v + 1 + n * n
print line > \"grid.graph\"; print x, y, z > \"grid.xyz\" } }'",
        list: "for n in 2 3 4 8; do printf 'ptest, %s ranks\\t%s\\n' $n $n; done",
        run: "mpiexec -n {command} build/*/programs/pm_ptest grid.graph grid.xyz > ptest.out &&
tail -n 3 ptest.out && test $(grep -c 'a cut of .*OK' ptest.out) -ge 20 && ! grep -q ERROR ptest.out",
        ranks: "2, 3, 4, 8",
        seconds: 180,
    },
    Recipe {
        name: "heffte",
        title: "heFFTe",
        part: "own tests (`ctest`), its stock transforms",
        build: "test -f build/Makefile || cmake -S . -B build -DCMAKE_CXX_COMPILER=mpicxx -DCMAKE_C_COMPILER=mpicc \
-DMPI_CXX_COMPILER=mpicxx -DHeffte_ENABLE_FFTW=OFF -DCMAKE_BUILD_TYPE=Release
make -C build",
        list: "cd build && ctest -N | sed -n 's/^ *Test *#[0-9]*: //p'",
        run: "cd build && ctest -R '^{}$' --output-on-failure",
        ranks: "1 to 12",
        seconds: 180,
    },
];

/// The suite of a name.
pub fn find(name: &str) -> Option<&'static Recipe> {
    ALL.iter().find(|recipe| recipe.name == name)
}

/// Names of the applications.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter()
        .map(|recipe| recipe.name)
        .filter(|name| *name != "osu")
}
