"""Settings of the agents."""

import dataclasses

from kairode.config.checks import at_least, not_negative, positive, unit_interval
from kairode.errors import KairodeError, unknown

ACTOR_CRITICS = ("ddpg", "td3", "sac")


@dataclasses.dataclass(frozen=True)
class DQNConfig:
    """How a Q-network is trained. The defaults are the paper's."""

    hidden: tuple[int, ...] = (256, 512)
    """ReLU units of the hidden layers."""
    learning_rate: float = 5e-4
    """Adam's learning rate."""
    batch_size: int = 128
    """Transitions per update; updates begin once the replay buffer holds as many."""
    replay_capacity: int = 100_000
    """Transitions in the replay buffer."""
    alpha: float = 0.6
    """Exponent of the priorities."""
    beta: float = 0.4
    """Exponent of the importance weights."""
    gradient_clip: float = 1.0
    """Each element of the gradient is clipped to [-clip, clip]."""
    target_period: int = 10
    """Episodes between two copies of the network to the target network."""
    target_decisions: int | None = None
    """Decisions between two copies, in place of the number of episodes, for episodes of very different lengths; by
    default episodes count."""
    final_epsilon: float = 0.05
    """Fraction of random actions towards the end of training, and at test."""
    epsilon_decay: float = 200.0
    """Decisions over which the fraction of random actions falls from 1 towards the final one, by a factor of e."""
    test_epsilon: float | None = None
    """Fraction of random actions at test, if it is not the final one."""
    reward_scale: float = 1.0
    """Factor on the rewards during training (published run: 1, whatever the size of the reward)."""
    scale_rewards: bool = False
    """Multiply that factor with one that makes values about 10 in size, found from the data (in imagination)."""
    double_q: bool = False
    """Double Q-learning (van Hasselt et al. 2016): the network selects the next action, the target values it."""
    disagreement_penalty: float = 0.0
    """Subtracted from the scaled reward per unit of disagreement among the members of a model environment."""
    cooldown: float = 0.0
    """Fraction of the episodes, at the end, over which the learning rate falls linearly to 0."""

    def __post_init__(self) -> None:
        at_least(self, 1, "batch_size", "replay_capacity", "target_period", "target_decisions")
        if self.replay_capacity < self.batch_size:
            raise KairodeError(f"a replay buffer of {self.replay_capacity} does not hold a batch of {self.batch_size}.")
        positive(self, "learning_rate", "gradient_clip", "epsilon_decay", "reward_scale")
        unit_interval(self, "alpha", "beta", "final_epsilon", "cooldown")
        if self.test_epsilon is not None:
            unit_interval(self, "test_epsilon")
        not_negative(self, "disagreement_penalty")

    @property
    def epsilon_at_test(self) -> float:
        """Fraction of random actions of the learned policy."""
        return self.final_epsilon if self.test_epsilon is None else self.test_epsilon


@dataclasses.dataclass(frozen=True)
class ActorCriticConfig:
    """How an actor and its critics are trained. The defaults are the paper's DDPG."""

    kind: str = "ddpg"
    """ddpg, td3 or sac."""
    hidden: tuple[int, int] = (64, 64)
    """ReLU units of the two hidden layers of every network."""
    actor_learning_rate: float = 1e-4
    """Adam's learning rate of the actor (and of SAC's temperature)."""
    critic_learning_rate: float = 1e-3
    """Adam's learning rate of the critics."""
    batch_size: int = 128
    """Transitions per update."""
    updates: int = 1
    """Updates per decision."""
    replay_capacity: int = 1_000_000
    """Transitions in the replay buffer."""
    polyak: float = 1e-3
    """Weight of the networks in the moving average of the target networks."""
    noise: float = 0.1
    """Standard deviation of the exploration noise (SAC samples its actions instead)."""
    warmup: int = 15_000
    """Random decisions before the first update."""
    policy_delay: int = 2
    """TD3: updates of the critics per update of the actor and the targets."""
    target_noise: float = 0.2
    """TD3: standard deviation of the noise on the target's action."""
    target_noise_clip: float = 0.5
    """TD3: bound of that noise."""
    reward_scale: float = 1.0
    """Factor on the rewards during training."""

    def __post_init__(self) -> None:
        if self.kind not in ACTOR_CRITICS:
            raise unknown("actor-critic", self.kind, ACTOR_CRITICS)
        if not (len(self.hidden) == 2 and all(isinstance(n, int) and n >= 1 for n in self.hidden)):
            raise KairodeError(f"hidden must be the sizes of two layers, such as (64, 64), got {self.hidden}.")
        at_least(self, 1, "batch_size", "replay_capacity", "policy_delay", "warmup", "updates")
        positive(self, "actor_learning_rate", "critic_learning_rate", "reward_scale")
        not_negative(self, "noise", "target_noise", "target_noise_clip")
        if not 0 < self.polyak <= 1:
            raise KairodeError(f"polyak must lie in (0, 1], got {self.polyak}.")

    @property
    def critics(self) -> int:
        """Number of critics."""
        return 1 if self.kind == "ddpg" else 2

    @property
    def stochastic(self) -> bool:
        """True if the actor samples its actions and is rewarded for their entropy."""
        return self.kind == "sac"


@dataclasses.dataclass(frozen=True)
class OfflineActorConfig:
    """How actors are trained from records, on real transitions alone or with imagined ones."""

    agent: ActorCriticConfig = dataclasses.field(
        default_factory=lambda: ActorCriticConfig(
            kind="td3",
            hidden=(128, 128),
            actor_learning_rate=3e-4,
            critic_learning_rate=3e-4,
            batch_size=256,
            polyak=5e-3,
            replay_capacity=32_768,
        )
    )
    """Networks and updates; the replay buffer holds imagined transitions. The scale of the rewards is found from the
    data, and multiplied with `reward_scale`."""
    updates: int = 12_000
    """Updates of every agent."""
    real_share: float = 0.5
    """Fraction of real transitions in a batch, where there are imagined ones."""
    imagined: int = 256
    """Imagined episodes side by side."""
    period: int = 32
    """Updates between two decisions in each of them."""
    stops: int = 2
    """Times of the training, evenly spaced, at which a policy is kept."""
    rollout_length: int = 5
    """Decisions of an imagined episode, which begins somewhere along a real one."""
    obs_margin: float = 0.5
    """Imagined observations are clipped to the range of the data, extended on both sides by this multiple of it."""

    def __post_init__(self) -> None:
        at_least(self, 1, "updates", "imagined", "period", "stops", "rollout_length")
        not_negative(self, "obs_margin")
        if not 0 < self.real_share <= 1:
            raise KairodeError(f"real_share must lie in (0, 1], got {self.real_share}.")
        if self.agent.kind == "sac":
            raise KairodeError("actors are trained from records by ddpg or td3, which imitate actions; sac draws them.")
        if self.imagined > self.agent.replay_capacity:
            raise KairodeError(
                f"a replay buffer of {self.agent.replay_capacity} does not hold {self.imagined} imagined transitions."
            )
