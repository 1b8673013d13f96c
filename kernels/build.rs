//! Compresses the kernels' PTX, which is text: a fifth of it is left to embed.

#[cfg(feature = "gpu")]
fn main() {
    use std::path::Path;
    use std::{env, fs};

    println!("cargo::rerun-if-changed=ptx");
    println!("cargo::rerun-if-changed=build.rs");
    let out = env::var_os("OUT_DIR").expect("cargo names a folder");
    for entry in fs::read_dir("ptx").expect("the folder of the kernels") {
        let path = entry.expect("a file").path();
        let text = fs::read(&path).expect("a readable kernel");
        let packed = miniz_oxide::deflate::compress_to_vec_zlib(&text, 6);
        let name = path.with_extension("z");
        let name = name.file_name().expect("a name");
        fs::write(Path::new(&out).join(name), packed).expect("room for a kernel");
    }
}

#[cfg(not(feature = "gpu"))]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
