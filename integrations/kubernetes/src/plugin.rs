//! The calls that a kubelet makes.

use crate::authority::with_authority;
use crate::kubelet::device_plugin_server::{DevicePlugin, DevicePluginServer};
use crate::kubelet::{
    AllocateRequest, AllocateResponse, ContainerRequest, ContainerResponse, DevicePluginOptions, Devices, Empty,
};
use crate::offer::Offered;
use gpool_protocol::Seal;
use std::collections::HashMap;
use std::pin::Pin;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, WatchStream};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// One resource of this host, as it is presented once. Each kubelet that watches is a receiver of its lists.
pub struct Plugin {
    offered: Offered,
    lists: watch::Sender<Option<Devices>>,
    seal: watch::Receiver<Option<Seal>>,
}

impl Plugin {
    /// Answers for `offered`, of which there is what `lists` says as soon as it says something, under the seal that the supervisor has
    /// told last.
    pub fn new(offered: Offered, lists: watch::Sender<Option<Devices>>, seal: watch::Receiver<Option<Seal>>) -> Self {
        Self { offered, lists, seal }
    }

    /// Answers kubelets until it is dropped; those that have called may go on with that.
    ///
    /// # Errors
    /// The listener fails.
    pub async fn serve(self, listener: UnixListener) -> Result<(), tonic::transport::Error> {
        let (sender, connections) = mpsc::channel(1);
        let accept = async move {
            loop {
                let connection = listener.accept().await.map(|(stream, _)| with_authority(stream));
                let is_over = connection.is_err();
                if sender.send(connection).await.is_err() || is_over {
                    return;
                }
            }
        };
        let serve =
            Server::builder().serve_with_incoming(DevicePluginServer::new(self), ReceiverStream::new(connections));
        tokio::join!(accept, serve).1
    }

    fn give(&self, request: &ContainerRequest) -> ContainerResponse {
        let (key, value) = self.offered.annotation(request.device_ids.len(), self.seal.borrow().as_ref());
        ContainerResponse { annotations: HashMap::from([(key, value)]) }
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<Devices, Status>> + Send>>;

    async fn options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        Ok(Response::new(Box::pin(WatchStream::new(self.lists.subscribe()).filter_map(|list| list).map(Ok))))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let containers = request.get_ref().containers.iter().map(|its| self.give(its)).collect();
        Ok(Response::new(AllocateResponse { containers }))
    }
}
