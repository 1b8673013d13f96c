//! A build without the feature `gpu`: devices are unavailable, and the error says why.
#![cfg(not(feature = "gpu"))]

use osier_kernels::{DeviceError, devices};

#[test]
fn devices_are_unavailable_and_the_error_names_the_feature() {
    let Err(DeviceError::Unavailable(why)) = devices() else {
        panic!("no device can be there");
    };
    assert!(why.contains("feature `gpu`"), "{why}");
}
