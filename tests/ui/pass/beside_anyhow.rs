#![deny(warnings)]

use photon::prelude::*;

#[topic("greetings")]
#[derive(Serialize, Deserialize)]
struct Greeting {
    who: String,
}

mod with_the_trait {
    use super::Greeting;
    use anyhow::{Context, Result};
    use photon::prelude::*;

    // The explicit import wins: the type needs its path here.
    #[subscribe(group = "trait")]
    pub async fn greet(greeting: Greeting, cx: photon::Context) -> Result<()> {
        let number: u64 = greeting.who.parse().context("not a number")?;
        anyhow::ensure!(number > u64::from(cx.attempt()));
        Ok(())
    }
}

mod with_both {
    use super::Greeting;
    use anyhow::Context as _;
    use photon::prelude::*;

    #[subscribe(group = "both")]
    pub async fn greet(greeting: Greeting, cx: Context) -> anyhow::Result<Outcome> {
        let number: u32 = greeting.who.parse().context("not a number")?;
        Ok(if number > cx.attempt() { Outcome::Done } else { Outcome::ignored("small") })
    }
}

mod with_a_result {
    use super::Greeting;
    use photon::prelude::*;

    type Result<T> = std::result::Result<T, HandlerError>;

    #[subscribe(group = "result")]
    pub async fn greet(greeting: Greeting) -> Result<()> {
        let _: u64 = greeting.who.parse()?;
        Ok(())
    }
}

fn main() {
    let _ = (with_the_trait::greet, with_both::greet, with_a_result::greet);
}
