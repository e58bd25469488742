//! The link, again and again: greeting, everything, then what changes; orders come in.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::link::{News, Order};
use api::wire::proto::{AgentGreeting, FromAgent, ToAgent, from_agent, to_agent};
use api::wire::{self, PROTOCOL, PROTOCOL_MIN};
use cluster::objects::Generation;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::identity::Identity;
use super::join::{channel, client, renew};

/// Between two attempts to reach the controller, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// How long a controller may take to answer the greeting.
const GREETING: Duration = Duration::from_secs(10);

/// Between two attempts to get a new certificate.
const RENEW_PAUSE: Duration = Duration::from_secs(60);

/// News that wait for a slow link. Beyond that the link begins anew, with everything.
const WAITING: usize = 1024;

/// What the link carries. Called on the link's thread: it must not wait for disks or the engine.
pub trait Talk: Send + Sync {
    /// A link begins: what changes from now on is sent there. The first news has to be
    /// [`News::Hello`].
    fn begins(&self, news: mpsc::Sender<News>);

    /// The link is lost.
    fn ends(&self);

    /// An order has come.
    fn order(&self, order: Order);

    /// An order has come that is of a release that says more than this one understands.
    fn not_understood(&self, resource: &str, generation: Generation, why: &str);

    /// A line for people.
    fn log(&self, text: &str);
}

/// Keeps the link up for ever. `directory` has the node's identity.
///
/// # Errors
/// If there is no identity, or no runtime.
pub async fn run(directory: &Path, talk: Arc<dyn Talk>) -> Result<(), super::NoIdentity> {
    let mut pause = PAUSE.0;
    loop {
        // Read anew: the node may have joined again.
        let identity = Identity::read(directory)?;
        let began = Instant::now();
        match once(directory, identity, &talk).await {
            Ok(()) => {}
            Err(why) => talk.log(&format!("no link to the controller: {why}")),
        }
        talk.ends();
        pause = match began.elapsed() > PAUSE.1 {
            true => PAUSE.0,
            false => (pause * 2).min(PAUSE.1),
        };
        tokio::time::sleep(pause).await;
    }
}

async fn once(
    directory: &Path,
    mut identity: Identity,
    talk: &Arc<dyn Talk>,
) -> Result<(), String> {
    let config = identity.client().map_err(|error| error.to_string())?;
    let channel = channel(&identity.controller, config).await?;
    let (out, outgoing) = mpsc::channel(WAITING);
    let greeting = AgentGreeting {
        protocol_min: PROTOCOL_MIN,
        protocol_max: PROTOCOL,
        node: identity.node.to_string(),
        release: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let message = Some(from_agent::Message::Greeting(greeting));
    // There is room for the first.
    let _ = out.try_send(FromAgent { message });
    let told = |status: Status| status.message().to_owned();
    let mut call = client(channel.clone());
    let stream = call.link(ReceiverStream::new(outgoing));
    let stream = tokio::time::timeout(GREETING, stream).await;
    let mut stream = stream.map_err(|_| "no answer in time")?.map_err(told)?.into_inner();
    let first = tokio::time::timeout(GREETING, stream.next()).await;
    let first = first.map_err(|_| "no greeting came")?.transpose().map_err(told)?;
    match first.and_then(|first| first.message) {
        Some(to_agent::Message::Greeting(hello))
            if (PROTOCOL_MIN..=PROTOCOL).contains(&hello.protocol) =>
        {
            let release = hello.release;
            talk.log(&format!("linked to the controller, which is of release {release}"));
        }
        Some(to_agent::Message::Greeting(hello)) => {
            return Err(format!("the controller speaks version {} of the link", hello.protocol));
        }
        _ => return Err("the controller did not greet".to_owned()),
    }
    let (news, mut changes) = mpsc::channel(WAITING);
    talk.begins(news);
    let mut due = Instant::now() + identity.renew_in();
    loop {
        tokio::select! {
            change = changes.recv() => {
                let Some(change) = change else { return Err("more changed than it takes".into()) };
                let body = from_agent::Message::News((&change).into());
                let message = FromAgent { message: Some(body) };
                if out.send(message).await.is_err() {
                    return Ok(());
                }
            }
            order = stream.next() => match order {
                Some(Ok(order)) => take(talk, order),
                Some(Err(status)) => return Err(status.message().to_owned()),
                None => return Err("the controller has ended it".to_owned()),
            },
            () = tokio::time::sleep_until(due) => {
                match renew(directory, &identity, channel.clone()).await {
                    Ok(new) => {
                        talk.log("the certificate was renewed");
                        identity = new;
                        due = Instant::now() + identity.renew_in();
                    }
                    Err(why) => {
                        talk.log(&format!("the certificate was not renewed: {why}"));
                        due = Instant::now() + RENEW_PAUSE;
                    }
                }
            }
        }
    }
}

fn take(talk: &Arc<dyn Talk>, order: ToAgent) {
    // A kind of message that this release does not know is skipped.
    let Some(to_agent::Message::Order(order)) = order.message else { return };
    match Order::try_from(&order) {
        Ok(order) => talk.order(order),
        Err(wire::NotUnderstood { why, .. }) => {
            talk.not_understood(&order.resource, Generation(order.generation), &why);
        }
    }
}
