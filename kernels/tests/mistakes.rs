//! Bad input: each a clear error, and the context usable afterwards. Where the
//! driver has to fail, it is the emulated one, in a process of its own.

mod support;

use osier_datatype::{Basic, Type};
use osier_kernels::debug::Debug as _;
use osier_kernels::{
    Context, DeviceError, DeviceSlice, DeviceView, Kind, Memory, Packer, Pinned, Stream, copy,
    launch,
};
use std::path::PathBuf;
use support::context;

/// Packs a little, against what must come out.
fn works(context: &Context) {
    let stream = Stream::new(context).unwrap();
    let bytes: Vec<u8> = (0..90).collect();
    let staged = Pinned::from_slice(context, &bytes).unwrap();
    let place = DeviceSlice::<u8>::new(&stream, 90).unwrap();
    copy::copy(&stream, &staged.on_device(&stream), &place).unwrap();
    let third = Type::vector(30, 1, 3, &Type::basic(Basic::Byte)).unwrap();
    let view = DeviceView::new(&place.into_inner(), 0, &third.commit().unwrap(), 1).unwrap();
    let packed = DeviceSlice::<u8>::new(&stream, 30).unwrap();
    let packer = Packer::new(context);
    packer
        .pack(&stream, &view.after_stream(&stream), 0..30, &packed, None)
        .unwrap();
    let mut found = Pinned::from_slice(context, &[0u8; 30]).unwrap();
    copy::copy(&stream, &packed, &found.on_device(&stream)).unwrap();
    let expected: Vec<u8> = (0..30).map(|i| 3 * i).collect();
    assert_eq!(found.host().unwrap(), expected);
}

/// Runs a child test of this file on the emulated driver.
fn child(test: &str, variables: &[(&str, &str)]) {
    let Some(driver) = support::emulated() else {
        return;
    };
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored"])
        .debug("cuda-library", driver)
        .env("OSIER_EMULATED_QUIET", "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let told = [run.stdout, run.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert!(run.status.success() && told.contains("1 passed"), "{told}");
}

/// Memory of another library is checked against the driver's own allocation.
#[test]
fn bounds_of_foreign_memory_are_checked() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let place = DeviceSlice::<u8>::with_kind(&stream, Kind::Plain, 1000)
        .unwrap()
        .into_inner();
    // SAFETY: the slice lives longer.
    let find = |at: u64, bytes: usize| unsafe { Memory::found(&context, at, bytes) };
    let inside = find(place.address() + 100, 900).unwrap();
    assert_eq!(inside.bytes(), 900);
    let beyond = find(place.address() + 100, 901 + 4095).unwrap_err();
    assert!(matches!(beyond, DeviceError::Bounds { .. }), "{beyond}");
    let on_host = [0u8; 8];
    let host = find(on_host.as_ptr() as u64, 8).unwrap_err();
    assert!(host.to_string().contains("knows no memory"), "{host}");
    drop(inside);
    works(&context);
}

#[test]
fn freed_memory_is_told() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let place = DeviceSlice::<u8>::with_kind(&stream, Kind::Plain, 1 << 20).unwrap();
    let at = place.into_inner().address();
    assert!(context.give_back_kept() >= 1 << 20);
    // SAFETY: not used, whatever it is.
    let freed = unsafe { Memory::found(&context, at, 1 << 20) }.unwrap_err();
    assert!(freed.to_string().contains("freed"), "{freed}");
    works(&context);
}

#[test]
#[ignore = "run by other_devices_are_told"]
fn child_with_two_devices() {
    let (first, second) = (Context::new(0).unwrap(), Context::new(1).unwrap());
    let stream = Stream::new(&second).unwrap();
    let place = DeviceSlice::<u8>::with_kind(&stream, Kind::Plain, 64)
        .unwrap()
        .into_inner();
    // SAFETY: the slice lives longer.
    let wrong = unsafe { Memory::found(&first, place.address(), 64) }.unwrap_err();
    let expected = DeviceError::WrongDevice {
        what: "view",
        memory: 1,
        stream: 0,
    };
    assert_eq!(wrong, expected);
    let here = Stream::new(&first).unwrap();
    let third = Type::vector(3, 1, 3, &Type::basic(Basic::Byte)).unwrap();
    let view = DeviceView::new(&place, 0, &third.commit().unwrap(), 1).unwrap();
    let local = DeviceSlice::<u8>::new(&here, 64).unwrap();
    let packer = Packer::new(&first);
    let wrong = packer.pack(&here, &view.after_stream(&stream), 0..3, &local, None);
    assert!(
        matches!(wrong, Err(DeviceError::WrongDevice { .. })),
        "{wrong:?}"
    );
    works(&first);
    works(&second);
}

#[test]
fn other_devices_are_told() {
    child("child_with_two_devices", &[("OSIER_EMULATED_GPUS", "2")]);
}

#[test]
#[ignore = "run by a_driver_too_old_is_told"]
fn child_with_an_old_driver() {
    let context = Context::new(0).unwrap();
    let stream = Stream::new(&context).unwrap();
    let place = DeviceSlice::<u8>::new(&stream, 64).unwrap();
    let third = Type::vector(3, 1, 3, &Type::basic(Basic::Byte)).unwrap();
    let view = DeviceView::new(&place.into_inner(), 0, &third.commit().unwrap(), 1).unwrap();
    let packed = DeviceSlice::<u8>::new(&stream, 64).unwrap();
    let packer = Packer::new(&context);
    let old = packer
        .pack(&stream, &view.after_stream(&stream), 0..3, &packed, None)
        .unwrap_err();
    assert!(old.to_string().contains("too old"), "{old}");
    // The failure was injected once.
    works(&context);
}

#[test]
fn a_driver_too_old_is_told() {
    let fail = "cuModuleLoadDataEx:1:222";
    child("child_with_an_old_driver", &[("OSIER_EMULATED_FAIL", fail)]);
}

#[test]
#[ignore = "run by a_full_device_is_told"]
fn child_with_little_memory() {
    let context = Context::new(0).unwrap();
    let stream = Stream::new(&context).unwrap();
    for kind in [Kind::Plain, Kind::Pool, Kind::Mapped] {
        let full = DeviceSlice::<u8>::with_kind(&stream, kind, 64 << 20).unwrap_err();
        assert!(full.is_out_of_memory(), "{kind:?}: {full}");
    }
    // A list that does not fit is an error of the pack, and not kept.
    let most = DeviceSlice::<u8>::new(&stream, 3 << 20)
        .unwrap()
        .into_inner();
    let places: Vec<isize> = (0..400_000).map(|i| i * 7919 % 400_009 * 7).collect();
    let scattered = Type::hindexed_block(1, &places, &Type::basic(Basic::Byte)).unwrap();
    let scattered = scattered.commit().unwrap();
    let view = DeviceView::new(&most, 0, &scattered, 1).unwrap();
    let packed = DeviceSlice::<u8>::new(&stream, 400_000).unwrap();
    let packer = Packer::new(&context);
    let full = packer.pack(
        &stream,
        &view.after_stream(&stream),
        0..400_000,
        &packed,
        None,
    );
    assert!(full.unwrap_err().is_out_of_memory());
    assert_eq!(packer.kept_bytes(), 0);
    works(&context);
}

#[test]
fn a_full_device_is_told() {
    child(
        "child_with_little_memory",
        &[("OSIER_EMULATED_MEMORY", "4M")],
    );
}

#[test]
#[ignore = "run by binaries_are_taken_where_they_lie"]
fn child_with_binaries() {
    let context = Context::new(0).unwrap();
    works(&context);
    for (module, image) in launch::images(&context) {
        // Only the kernels of strides have a binary there; and one that no driver
        // takes is passed over.
        let found = matches!(image, launch::Image::Cubin(_));
        assert_eq!(found, module == "strided", "{module}");
    }
    let stream = Stream::new(&context).unwrap();
    let list = Type::indexed(&[(1, 0), (2, 3)], &Type::basic(Basic::Byte)).unwrap();
    let place = DeviceSlice::<u8>::new(&stream, 64).unwrap().into_inner();
    let view = DeviceView::new(&place, 0, &list.commit().unwrap(), 5).unwrap();
    let packed = DeviceSlice::<u8>::new(&stream, 64).unwrap();
    let packer = Packer::new(&context);
    packer
        .pack(&stream, &view.after_stream(&stream), 0..15, &packed, None)
        .unwrap();
    let images = launch::images(&context);
    assert!(
        images.contains(&("general", launch::Image::Ptx)),
        "{images:?}"
    );
    stream.synchronize().unwrap();
}

/// The emulated driver takes anything that begins as a binary does.
#[test]
fn binaries_are_taken_where_they_lie() {
    let Some(context) = context() else { return };
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cubins");
    std::fs::create_dir_all(&folder).unwrap();
    for (stem, image) in [("strided", "\x7fELF\0"), ("general", "no binary\0")] {
        let ptx = std::fs::read_to_string(format!("ptx/{stem}.ptx")).unwrap();
        let digest = ptx
            .lines()
            .find_map(|line| line.strip_prefix("// source: "))
            .unwrap();
        let (major, _) = context.capability();
        let name = format!("{stem}-{digest}.sm_{major}0.cubin");
        std::fs::write(folder.join(name), image).unwrap();
    }
    let folder = folder.display().to_string();
    child("child_with_binaries", &[(launch::CUBINS_VARIABLE, &folder)]);
}
