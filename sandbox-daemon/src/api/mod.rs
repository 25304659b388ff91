//! The gRPC API on a Unix socket. No logic of its own: it translates between
//! `sandbox.v1` and the registry.

mod changes;
mod deadline;
mod jobs;
mod peer;
mod request;
mod response;
mod service;
mod socket;
mod status;

use std::sync::Arc;

use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

pub use socket::{Lock, Socket, SocketError};

use crate::{
    proto::{self, sandboxes_server::SandboxesServer},
    sandbox::Registry,
};

/// Largest message that is read: a policy, arguments and an environment fit.
const MAX_REQUEST_BYTES: usize = 4 << 20;

/// Calls on one connection at a time.
const MAX_CALLS: u32 = 256;

/// Why the API ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Reflection.
    #[error("the API cannot describe itself")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The transport.
    #[error("the API cannot be served")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves the API until `shutdown`, and then what is still open.
pub async fn serve(
    registry: Arc<Registry>,
    socket: &Socket,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health
        .set_serving::<SandboxesServer<service::Service>>()
        .await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    let service = SandboxesServer::new(service::Service::new(registry.clone()))
        .max_decoding_message_size(MAX_REQUEST_BYTES);
    let connections = socket.accept(&registry);
    // No keepalive: the kernel tells when the process at the other end of a Unix
    // socket is gone, and one that is only stopped, as by Ctrl-Z, is not.
    Server::builder()
        .max_concurrent_streams(MAX_CALLS)
        .add_service(health_service)
        .add_service(reflection)
        .add_service(service)
        .serve_with_incoming_shutdown(ReceiverStream::new(connections), async {
            shutdown.await;
            health
                .set_not_serving::<SandboxesServer<service::Service>>()
                .await;
        })
        .await?;
    Ok(())
}
