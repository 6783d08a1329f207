"""The engine `ray`: models in replicas of a Ray Serve deployment, on one machine or a cluster.

Each replica is an engine `local` of its own. Ray places replicas, replaces dead ones and carries
the calls; its queue is unlimited. Admission, deadlines, batches, errors, another try where a
replica died, versions and drain are this package's, as in the engine `local`.
"""

import asyncio
import contextlib
import dataclasses
import logging
import re
import secrets

from kformer.serving import interface, ray_cluster
from kformer.serving.engine_local import LocalEngine
from kformer.serving.interface import Engine

APPLICATION, MODELS = "kformer", "models"
# Options of every deployment. The ingress admits as much as the settings allow, so Ray's own limits
# are out of the way. Ray finds out within two seconds that a replica died, and starts another one;
# a machine may be busy for a while.
DEPLOYMENT = {
    "max_ongoing_requests": 1_000_000,
    "max_queued_requests": -1,
    "health_check_period_s": 2.0,
    "health_check_timeout_s": 20.0,
}
# How often a request goes to another replica after one died or is ending.
_TRIES = 5
_SECONDS_BETWEEN_TRIES = 0.2
# Maximum time for the last replies of an ending replica, and for a deployment under way.
_SECONDS_TO_END = 30.0
_SECONDS_TO_LOOK = 2.0
_logger = logging.getLogger(__name__)


class ModelReplica:
    """What a replica runs: an engine `local`. Errors are returned, since Ray would wrap them.

    Args:
        settings: `ServerSettings`.
    """

    async def __init__(self, settings):
        from ray import serve

        self._id = serve.get_replica_context().replica_id.unique_id
        self._engine = LocalEngine(dataclasses.replace(settings, replicas=1))
        await self._engine.start()

    async def run(self, request):
        """The `Reply`, or the `ServingError` that the request is answered by."""
        try:
            return await self._engine.run(request)
        except interface.ServingError as error:
            return error

    async def state(self):
        """The replica's name, its `ModelVersion` lists and its `ModelStats`."""
        return self._id, self._engine.models(), await self._engine.stats()

    async def __del__(self):
        """Ray calls it before it ends the replica, when its requests are answered."""
        await self._engine.close()


class RayEngine(Engine):
    """Models in processes of Ray.

    Args:
        settings: `ServerSettings`, whose models are all SavedModels. On a cluster every machine
            sees them by the same paths.
        handle: Ray Serve's handle of the deployment, default `None`: it is made, and Ray is started
            or connected to at `settings.ray_address`.
    """

    def __init__(self, settings, handle=None):
        self._settings, self._handle = settings, handle
        self._stack = contextlib.ExitStack()
        self._deploying = None
        self._states, self._seen = {}, set()
        self._models = {model.name: [] for model in settings.models}
        self._poll, self._is_draining = None, False
        # The requests in flight, and what is done when nobody waits for them any longer.
        self._open, self._is_over = set(), None

    async def start(self):
        self._is_over = asyncio.get_running_loop().create_future()
        try:
            if self._handle is None:
                self._deploying = asyncio.ensure_future(asyncio.to_thread(self._deploy))
                self._handle = await asyncio.shield(self._deploying)
            await self._look()
        except BaseException:
            await self.close()
            raise
        self._poll = asyncio.create_task(self._keep_looking())

    def _deploy(self):
        """Starts Ray and the deployment; returns its handle."""
        num_cpus = self._settings.replicas * (self._settings.threads or 1) + 1
        connection = ray_cluster.connected(self._settings.ray_address, num_cpus=num_cpus)
        ray = self._stack.enter_context(connection)
        from ray import serve

        was_running = False
        with contextlib.suppress(ValueError):  # Ray Serve does not run on the cluster yet.
            ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
            was_running = bool(serve.status().applications)
        # No proxy of Ray's: the ingress is this process.
        serve.start(proxy_location="Disabled")
        # Another server on the cluster has another name.
        name = f"{APPLICATION}-{secrets.token_hex(4)}"
        self._stack.callback(*((serve.delete, name) if was_running else (serve.shutdown,)))
        if self._is_draining:
            raise interface.Draining
        try:
            return serve.run(models_deployment(self._settings), name=name, route_prefix=None)
        except RuntimeError as error:  # It says which deployment failed, and nothing else.
            raise ValueError(_reason(serve, name) or str(error)) from error

    async def run(self, request):
        if self._is_draining:
            raise interface.Draining
        task = asyncio.ensure_future(self._run(request))
        self._open.add(task)
        try:
            await asyncio.wait({task, self._is_over}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise interface.Draining("The server has ended: ask again in a moment.")
        finally:
            self._open.discard(task)
            task.cancel()

    async def _run(self, request):
        from ray import exceptions

        lost = exceptions.RayActorError, exceptions.WorkerCrashedError, exceptions.NodeDiedError
        for number in range(1, _TRIES + 1):
            try:
                reply = await self._call(request)
            except lost as error:
                _logger.warning("a replica died at try %d of a request: %s", number, error)
                reply = None
            # A replica may end, or not have loaded a version yet that others serve.
            passing = None | interface.Draining | interface.NotReady | interface.UnknownModel
            if number == _TRIES or not isinstance(reply, passing):
                break
            await asyncio.sleep(_SECONDS_BETWEEN_TRIES * number)
        if reply is None:
            raise interface.ModelFailed
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def _call(self, request):
        """One try. After the deadline nobody waits, whatever the replica does."""
        response = self._handle.run.remote(request)
        try:
            return await asyncio.wait_for(response, request.seconds_left)
        except TimeoutError:
            response.cancel()
            raise interface.DeadlineExceeded from None
        except asyncio.CancelledError:
            response.cancel()  # What has not begun to be computed is dropped there.
            raise

    def models(self):
        return self._models

    async def stats(self):
        # What was seen last is good enough where no replica answers at once.
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._look(), _SECONDS_TO_LOOK)
        totals = {}
        for replica, (_, each) in self._states.items():
            for stats in each:
                key = stats.name, stats.version
                total = totals.setdefault(key, interface.ModelStats(*key))
                total.batches.update(stats.batches)
                total.texts += stats.texts
                total.tokens += stats.tokens
                total.seconds += stats.seconds
                total.busy_texts += stats.busy_texts
                total.busy_seconds += stats.busy_seconds
                # Nothing waits for a replica that is gone.
                total.waiting += stats.waiting if replica in self._seen else 0
        return list(totals.values())

    async def _look(self):
        """Updates what replicas serve. Ray chooses replicas, so twice as many calls reach most."""
        responses = [self._handle.state.remote() for _ in range(2 * self._settings.replicas)]
        answers = await asyncio.gather(*responses, return_exceptions=True)
        states = [answer for answer in answers if not isinstance(answer, BaseException)]
        if not states:
            raise answers[0]
        self._seen = {name for name, _, _ in states}
        for name, models, stats in states:
            self._states[name] = models, stats
        # The newest version that any of them serves.
        self._models = max((models for _, models, _ in states), key=_newest)

    async def _keep_looking(self):
        while True:
            await asyncio.sleep(self._settings.poll_s)
            try:
                await self._look()
            except Exception as error:
                _logger.warning("no replica answered what it serves: %s", error)

    async def drain(self, seconds):
        self._is_draining = True
        if self._open:
            await asyncio.wait(set(self._open), timeout=seconds)
        if not self._is_over.done():
            self._is_over.set_result(None)

    async def close(self):
        self._is_draining = True
        if self._poll is not None:
            self._poll.cancel()
        if self._deploying is not None:
            # Its thread cannot be stopped: what it starts after the end would stay.
            await asyncio.wait({self._deploying}, timeout=_SECONDS_TO_END)
        await asyncio.to_thread(self._stack.close)


def models_deployment(settings):
    """The deployment of the models, with its settings bound: what `serve.run` takes.

    Args:
        settings: `ServerSettings`.
    """
    from ray import serve

    threads = settings.threads or 1
    variables = ray_cluster.worker_variables("tensorflow", threads)
    deployment = serve.deployment(
        ModelReplica,
        name=MODELS,
        num_replicas=settings.replicas,
        logging_config={"enable_access_log": False},
        graceful_shutdown_timeout_s=_SECONDS_TO_END,
        ray_actor_options={"num_cpus": threads, "runtime_env": {"env_vars": variables}},
        **DEPLOYMENT,
    )
    return deployment.bind(settings)


def _reason(serve, name):
    """Why a replica of an application did not start: the last line of what Ray knows."""
    application = serve.status().applications.get(name)
    deployment = application and application.deployments.get(MODELS)
    lines = deployment.message.strip().splitlines() if deployment else []
    return re.sub(r"^[\w.]+: ", "", lines[-1]) if lines else ""


def _newest(models):
    """A number that grows with the versions that are served."""
    return sum(
        max((one.version for one in versions if one.state == interface.AVAILABLE), default=0)
        for versions in models.values()
    )
