#[photon::test]
struct Test;

fn main() {}
