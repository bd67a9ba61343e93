//! The calls that a kubelet makes.

use crate::authority::with_authority;
use crate::kubelet::device_plugin_server::{DevicePlugin, DevicePluginServer};
use crate::kubelet::{
    AllocateRequest, AllocateResponse, ContainerRequest, ContainerResponse, DevicePluginOptions, Devices, Empty,
};
use crate::offer::{Offered, devices};
use gpool_protocol::{COUNTED_ANNOTATION, Countable};
use std::collections::HashMap;
use std::pin::Pin;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, WatchStream};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// One resource of this host. Each list that a kubelet watches is a receiver of its count.
pub struct Plugin {
    offered: Offered,
    count: watch::Sender<Countable>,
}

impl Plugin {
    /// Answers for `offered`, of which there is what `count` says.
    pub fn new(offered: Offered, count: watch::Sender<Countable>) -> Self {
        Self { offered, count }
    }

    /// Answers kubelets until it is dropped.
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

    fn give(&self, request: &ContainerRequest) -> Result<ContainerResponse, Status> {
        let resource = self.offered.counted(request.device_ids.len())?;
        let annotations = HashMap::from([(COUNTED_ANNOTATION.to_owned(), resource.to_string())]);
        Ok(ContainerResponse { annotations })
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<Devices, Status>> + Send>>;

    async fn options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let counts = WatchStream::new(self.count.subscribe());
        Ok(Response::new(Box::pin(counts.map(|count| Ok(devices(count))))))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let containers = request.get_ref().containers.iter().map(|its| self.give(its)).collect::<Result<_, _>>()?;
        Ok(Response::new(AllocateResponse { containers }))
    }
}
