//! A scheduled job that one of all instances runs.
//!
//! `cargo run --example cron`, several times side by side

use std::time::Duration;

use locksidecar::{Client, Error, Options};
use tokio_cron_scheduler::{Job, JobScheduler, JobSchedulerError};

/// A job that runs each second, in one instance of all. The others find the lock held, and wait for the next time. `min_hold` keeps the lock for almost a
/// second, so that an instance whose clock is late does not run the job again.
pub fn each_second(client: Client, run: impl Fn(i64) + Clone + Send + Sync + 'static) -> Result<Job, JobSchedulerError> {
    Job::new_async("* * * * * *", move |_, _| {
        let (client, run) = (client.clone(), run.clone());
        Box::pin(async move {
            let options = Options::new().wait(Duration::ZERO).min_hold(Duration::from_millis(900));
            let ran = client
                .lock("job:each-second", options, |lock| async move {
                    run(lock.token());
                    Ok::<_, Error>(())
                })
                .await;
            match ran {
                Ok(()) | Err(Error::LockHeld(_)) => {}
                Err(e) => eprintln!("the job was not run: {e}"),
            }
        })
    })
}

#[allow(dead_code)] // the tests have a main of their own
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scheduler = JobScheduler::new().await?;
    scheduler.add(each_second(Client::new(), |token| println!("this instance ran it, with the token {token}"))?).await?;
    scheduler.start().await?;
    std::future::pending().await
}
