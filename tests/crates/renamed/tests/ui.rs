//! Case renamed-crate: without `crate = path` the error says that this is what is missing.

#[test]
fn renamed_crate_without_a_path() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
