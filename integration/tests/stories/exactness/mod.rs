//! Budgets are exact: three edges, 64 callers at once, four projects and three people's keys, nearly spent or with room,
//! round after round. Calls are small and large, whole, streamed or abandoned, edges are killed and started anew, and beside
//! all that somebody has left a transaction open, dumps the database and builds indexes.
//!
//! Every commit is checked by the database itself (`TestDatabase::watch_ledger`). After each round the story compares
//! what the clients were told, what the provider saw and what the ledger says, call by call, and then walks over the edge of the budget
//! call by call.

mod beside;
mod bound;
mod caller;
mod cast;
mod compare;
mod plan;
mod round;
mod scale;
mod scene;
mod step;
mod tally;

use self::beside::Beside;
use self::plan::Plan;
use self::scale::Scale;
use self::scene::Scene;
use self::tally::Tally;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_budget_is_overspent_and_no_call_with_room_is_denied() -> anyhow::Result<()> {
    let scale = Scale::read()?;
    println!("exactness: {scale}");
    let mut scene = Scene::start().await?;
    let forgotten = scene.stack.database.leave_transaction_open().await?;
    let mut beside = Beside::new(&scene);
    let mut tally = Tally::default();
    for number in 0..scale.rounds {
        let plan = Plan::of_round(&scale, number);
        let played = async {
            beside.begin(&scale, number).await?;
            round::play(&mut scene, number, &plan, &mut tally).await?;
            step::walk(&mut scene, number, &plan, &mut tally).await
        };
        played.await.map_err(|error| error.context(format!("round {number} of {scale}: {plan:?}; so far {tally}")))?;
    }
    forgotten.release().await?;
    beside.finish().await?;
    scene.at_rest(&mut tally).await.map_err(|error| error.context(format!("at the end of {scale}: {tally}")))?;
    println!("exactness: {tally}");
    tally.has_weight(&scale).map_err(|error| error.context(format!("{scale} has judged too little: {tally}")))?;
    scene.stop().await
}
