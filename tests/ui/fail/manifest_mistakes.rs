photon::manifest![];
photon::manifest![billing-handlers];
photon::manifest![uuid, uuid];
photon::manifest![nowhere];

fn main() {}
