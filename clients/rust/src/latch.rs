use std::future::{pending, Future};

use tokio::sync::watch;

/// A value that is set once, and can be waited for.
pub(crate) struct Latch<T>(watch::Sender<Option<T>>);

impl<T: Clone + Send + Sync + 'static> Latch<T> {
    pub fn new() -> Latch<T> {
        Latch(watch::Sender::new(None))
    }

    /// Reports whether it was the first one.
    pub fn set(&self, value: T) -> bool {
        self.0.send_if_modified(|now| {
            let first = now.is_none();
            if first {
                *now = Some(value);
            }
            first
        })
    }

    pub fn get(&self) -> Option<T> {
        self.0.borrow().clone()
    }

    pub fn is_set(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Waits for the value; for ever if the latch is dropped without one.
    pub fn wait(&self) -> impl Future<Output = T> + Send + Sync + 'static {
        let mut changes = self.0.subscribe();
        async move {
            let value = changes.wait_for(Option::is_some).await.ok().and_then(|value| value.clone());
            match value {
                Some(value) => value,
                None => pending().await,
            }
        }
    }
}
