//! Every form that the macros accept compiles, and every one that they refuse has its message.
//!
//! The messages stand beside the programs; `TRYBUILD=overwrite cargo test --test ui` writes them anew.

#[test]
fn p12_mistakes_are_found_at_compile_time() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/fail/*.rs");
}
