-- 0001: everything. One text for every database: a word in braces is spelled by the driver ({id}: the
-- type of a self-numbering primary key). Times are seconds since 1970 by the database's clock.

CREATE TABLE team (
    id          {id},
    name        TEXT NOT NULL UNIQUE,
    created_at  DOUBLE PRECISION NOT NULL
);

CREATE TABLE model (
    id           {id},
    name         TEXT NOT NULL,
    family       TEXT,
    fingerprint  TEXT NOT NULL UNIQUE,      -- over config, tokenizer and weights
    config_sha   TEXT,
    tokenizer_sha TEXT,
    weights_sha  TEXT,
    created_at   DOUBLE PRECISION NOT NULL
);

CREATE TABLE text_set (
    id          {id},
    name        TEXT NOT NULL,
    sha         TEXT NOT NULL UNIQUE,
    tokens      BIGINT,
    created_at  DOUBLE PRECISION NOT NULL
);

CREATE TABLE pair (
    id          {id},
    team_id     BIGINT NOT NULL REFERENCES team(id),
    name        TEXT NOT NULL,
    source_id   BIGINT REFERENCES model(id),
    target_id   BIGINT REFERENCES model(id),
    created_at  DOUBLE PRECISION NOT NULL,
    UNIQUE (team_id, name)
);

CREATE TABLE spec (
    id          {id},
    pair_id     BIGINT NOT NULL REFERENCES pair(id),
    sha         TEXT NOT NULL,
    json        TEXT NOT NULL,               -- canonical
    created_at  DOUBLE PRECISION NOT NULL,
    UNIQUE (pair_id, sha)
);

CREATE TABLE run (
    id           {id},
    spec_id      BIGINT NOT NULL REFERENCES spec(id),
    key          TEXT NOT NULL,              -- scheduler/submit.h
    priority     BIGINT NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('open', 'succeeded', 'failed', 'cancelled')),
    created_at   DOUBLE PRECISION NOT NULL,
    finished_at  DOUBLE PRECISION
);
CREATE INDEX run_key ON run(key);
CREATE INDEX run_spec ON run(spec_id);
CREATE INDEX run_open ON run(id) WHERE state = 'open';

CREATE TABLE worker (
    id          {id},
    name        TEXT NOT NULL UNIQUE,        -- host/boot/pid-namespace/pid/start/nonce
    host        TEXT NOT NULL,
    machine     TEXT NOT NULL,
    started_at  DOUBLE PRECISION NOT NULL,
    gone_at     DOUBLE PRECISION             -- left in good order
);

CREATE TABLE job (
    id          {id},
    run_id      BIGINT NOT NULL REFERENCES run(id),
    kind        BIGINT NOT NULL,             -- jobs/kinds.def
    kind_name   TEXT NOT NULL,
    version     BIGINT NOT NULL,             -- of the kind's code
    timed       BIGINT NOT NULL,
    label       TEXT NOT NULL,
    params      TEXT NOT NULL,
    identity    TEXT NOT NULL,
    key         TEXT,                        -- schema/step_key.h; known once the inputs are
    state       TEXT NOT NULL CHECK (state IN ('blocked', 'ready', 'dispatched', 'running',
                    'cancelling', 'succeeded', 'skipped', 'failed', 'parked', 'cancelled')),
    priority    BIGINT NOT NULL,
    waits       BIGINT NOT NULL CHECK (waits >= 0), -- jobs it needs that have no result yet
    token       BIGINT NOT NULL,             -- the fence: raised by every claim and retry
    attempt     BIGINT NOT NULL,
    crashes     BIGINT NOT NULL,
    retries     BIGINT NOT NULL,
    run_after   DOUBLE PRECISION NOT NULL,
    lease_until DOUBLE PRECISION,
    worker_id   BIGINT REFERENCES worker(id),
    timeout_s   DOUBLE PRECISION NOT NULL,
    equal_id    BIGINT REFERENCES job(id),   -- of a skipped job: the one whose results it has
    status      BIGINT NOT NULL,             -- base/status.def, of the latest attempt
    message     TEXT NOT NULL,
    created_at  DOUBLE PRECISION NOT NULL,
    started_at  DOUBLE PRECISION,
    finished_at DOUBLE PRECISION,
    CHECK ((state IN ('running', 'cancelling')) = (lease_until IS NOT NULL)),
    CHECK ((state = 'skipped') = (equal_id IS NOT NULL))
);
CREATE INDEX job_run ON job(run_id);
CREATE INDEX job_ready ON job(priority DESC, id) WHERE state IN ('ready', 'dispatched');
CREATE INDEX job_lease ON job(lease_until) WHERE state IN ('running', 'cancelling');
CREATE UNIQUE INDEX job_key_live ON job(key) WHERE state IN ('running', 'cancelling');
CREATE INDEX job_key_done ON job(key) WHERE state = 'succeeded';
CREATE INDEX job_active ON job(run_id)
    WHERE state IN ('ready', 'dispatched', 'running', 'cancelling');

CREATE TABLE dep (
    job_id      BIGINT NOT NULL REFERENCES job(id),
    name        TEXT NOT NULL,               -- of the input
    needs_id    BIGINT NOT NULL REFERENCES job(id),
    output      TEXT NOT NULL,
    PRIMARY KEY (job_id, name)
);
CREATE INDEX dep_needs ON dep(needs_id);

CREATE TABLE attempt (
    id          {id},
    job_id      BIGINT NOT NULL REFERENCES job(id),
    token       BIGINT NOT NULL,
    number      BIGINT NOT NULL,
    worker_id   BIGINT NOT NULL REFERENCES worker(id),
    started_at  DOUBLE PRECISION NOT NULL,
    ended_at    DOUBLE PRECISION,
    outcome     TEXT,                        -- the state it led to, or retry, crashed, released
    status      BIGINT,
    message     TEXT,
    log         TEXT NOT NULL,               -- path below the home
    UNIQUE (job_id, token)
);

CREATE TABLE artefact (
    job_id      BIGINT NOT NULL REFERENCES job(id),
    name        TEXT NOT NULL,
    sha         TEXT NOT NULL,               -- schema/store.h
    bytes       BIGINT NOT NULL,
    created_at  DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (job_id, name)
);
CREATE INDEX artefact_sha ON artefact(sha);

CREATE TABLE metric (
    job_id      BIGINT NOT NULL REFERENCES job(id),
    name        TEXT NOT NULL,
    labels      TEXT NOT NULL,               -- canonical JSON object
    value       DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (job_id, name, labels)
);

CREATE TABLE sample (
    job_id      BIGINT NOT NULL REFERENCES job(id),
    suite       TEXT NOT NULL,
    arm         TEXT NOT NULL,
    metric      TEXT NOT NULL,
    item        TEXT NOT NULL,
    value       DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (job_id, suite, arm, metric, item)
);

CREATE TABLE timing (
    job_id      BIGINT NOT NULL REFERENCES job(id),
    arm         TEXT NOT NULL,
    tokens      BIGINT NOT NULL,
    stage       TEXT NOT NULL,
    round       BIGINT NOT NULL,             -- 0, 1 … in the order measured
    seconds     DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (job_id, arm, tokens, stage, round)
);

CREATE TABLE event (
    id          {id},
    run_id      BIGINT REFERENCES run(id),
    job_id      BIGINT REFERENCES job(id),
    at          DOUBLE PRECISION NOT NULL,
    what        TEXT NOT NULL,
    text        TEXT NOT NULL
);
CREATE INDEX event_job ON event(job_id);
CREATE INDEX event_run ON event(run_id);

CREATE TABLE outbox (
    id          {id},
    at          DOUBLE PRECISION NOT NULL,
    topic       TEXT NOT NULL,
    payload     TEXT NOT NULL,
    sent_at     DOUBLE PRECISION
);
CREATE INDEX outbox_unsent ON outbox(id) WHERE sent_at IS NULL;

CREATE TABLE schedule (
    id          {id},
    team_id     BIGINT NOT NULL REFERENCES team(id),
    spec_id     BIGINT NOT NULL REFERENCES spec(id),
    name        TEXT NOT NULL,
    cron        TEXT NOT NULL,
    zone        TEXT NOT NULL,
    catch_up    TEXT NOT NULL,
    enabled     BIGINT NOT NULL,
    created_at  DOUBLE PRECISION NOT NULL,
    UNIQUE (team_id, name)
);

CREATE TABLE tick (
    schedule_id BIGINT NOT NULL REFERENCES schedule(id),
    at          DOUBLE PRECISION NOT NULL,
    run_id      BIGINT REFERENCES run(id),
    PRIMARY KEY (schedule_id, at)
);

CREATE TABLE alert (
    id          {id},
    run_id      BIGINT REFERENCES run(id),
    at          DOUBLE PRECISION NOT NULL,
    what        TEXT NOT NULL,
    text        TEXT NOT NULL,
    closed_at   DOUBLE PRECISION
);

-- The views: what dashboards and `kvmill … list` read. doc/views.md describes every column; columns
-- are only ever added, at the end.

CREATE VIEW v_runs AS
SELECT r.id AS run, t.name AS team, p.name AS pair, r.state AS state, r.priority AS priority,
       r.created_at AS created_at, r.finished_at AS finished_at, s.sha AS spec_sha, r.key AS key
FROM run r JOIN spec s ON s.id = r.spec_id JOIN pair p ON p.id = s.pair_id
     JOIN team t ON t.id = p.team_id;

CREATE VIEW v_queue AS
SELECT j.id AS job, j.run_id AS run, p.name AS pair, j.kind_name AS kind, j.label AS label,
       j.state AS state, j.priority AS priority, j.attempt AS attempt, j.crashes AS crashes,
       j.run_after AS run_after, j.lease_until AS lease_until, w.name AS worker,
       j.status AS status, j.message AS message, j.created_at AS created_at,
       j.started_at AS started_at, j.finished_at AS finished_at, j.equal_id AS equal_job,
       j.key AS key, j.waits AS waits
FROM job j JOIN run r ON r.id = j.run_id JOIN spec s ON s.id = r.spec_id
     JOIN pair p ON p.id = s.pair_id LEFT JOIN worker w ON w.id = j.worker_id;

CREATE VIEW v_attempts AS
SELECT a.job_id AS job, a.number AS attempt, a.token AS token, w.name AS worker,
       a.started_at AS started_at, a.ended_at AS ended_at, a.outcome AS outcome,
       a.status AS status, a.message AS message, a.log AS log
FROM attempt a JOIN worker w ON w.id = a.worker_id;

CREATE VIEW v_events AS
SELECT e.id AS event, e.run_id AS run, e.job_id AS job, e.at AS at, e.what AS what,
       e.text AS text
FROM event e;

CREATE VIEW v_metrics AS
SELECT p.name AS pair, j.run_id AS run, j.id AS job, j.kind_name AS kind, j.label AS label,
       m.name AS metric, m.labels AS labels, m.value AS value
FROM job j JOIN run r ON r.id = j.run_id JOIN spec s ON s.id = r.spec_id
     JOIN pair p ON p.id = s.pair_id JOIN metric m ON m.job_id = COALESCE(j.equal_id, j.id)
WHERE j.state IN ('succeeded', 'skipped');

CREATE VIEW v_quality AS
SELECT p.name AS pair, j.run_id AS run, j.id AS job, x.suite AS suite, x.arm AS arm,
       x.metric AS metric, COUNT(*) AS items, AVG(x.value) AS mean,
       r.created_at AS run_created_at
FROM job j JOIN run r ON r.id = j.run_id JOIN spec s ON s.id = r.spec_id
     JOIN pair p ON p.id = s.pair_id JOIN sample x ON x.job_id = COALESCE(j.equal_id, j.id)
WHERE j.state IN ('succeeded', 'skipped')
GROUP BY p.name, j.run_id, j.id, x.suite, x.arm, x.metric, r.created_at;

CREATE VIEW v_ttft AS
SELECT p.name AS pair, j.run_id AS run, j.id AS job, x.arm AS arm, x.tokens AS tokens,
       x.stage AS stage, x.n AS rounds,
       AVG(CASE WHEN x.place IN ((x.n + 1) / 2, (x.n + 2) / 2) THEN x.seconds END) AS median_s,
       MIN(x.seconds) AS least_s, MAX(x.seconds) AS most_s, r.created_at AS run_created_at
FROM job j JOIN run r ON r.id = j.run_id JOIN spec s ON s.id = r.spec_id
     JOIN pair p ON p.id = s.pair_id
     JOIN (SELECT job_id, arm, tokens, stage, seconds,
                  ROW_NUMBER() OVER (PARTITION BY job_id, arm, tokens, stage
                                     ORDER BY seconds) AS place,
                  COUNT(*) OVER (PARTITION BY job_id, arm, tokens, stage) AS n
           FROM timing) x ON x.job_id = COALESCE(j.equal_id, j.id)
WHERE j.state IN ('succeeded', 'skipped')
GROUP BY p.name, j.run_id, j.id, x.arm, x.tokens, x.stage, x.n, r.created_at;

CREATE VIEW v_regressions AS
SELECT q.pair AS pair, q.run AS run, 'quality' AS what, q.suite AS name, q.arm AS arm,
       q.metric AS metric, q.mean AS value,
       LAG(q.mean) OVER (PARTITION BY q.pair, q.suite, q.arm, q.metric
                         ORDER BY q.run, q.job) AS previous,
       q.mean - LAG(q.mean) OVER (PARTITION BY q.pair, q.suite, q.arm, q.metric
                                  ORDER BY q.run, q.job) AS change
FROM v_quality q
UNION ALL
SELECT t.pair, t.run, 'ttft', t.stage, t.arm, CAST(t.tokens AS TEXT), t.median_s,
       LAG(t.median_s) OVER (PARTITION BY t.pair, t.stage, t.arm, t.tokens
                             ORDER BY t.run, t.job),
       t.median_s - LAG(t.median_s) OVER (PARTITION BY t.pair, t.stage, t.arm, t.tokens
                                          ORDER BY t.run, t.job)
FROM v_ttft t;

CREATE VIEW v_pairs AS
SELECT t.name AS team, p.name AS pair, COUNT(r.id) AS runs, MAX(r.id) AS last_run,
       (SELECT z.state FROM run z JOIN spec y ON y.id = z.spec_id WHERE y.pair_id = p.id
        ORDER BY z.id DESC LIMIT 1) AS last_state,
       MAX(r.created_at) AS last_created_at, MAX(r.finished_at) AS last_finished_at
FROM pair p JOIN team t ON t.id = p.team_id LEFT JOIN spec s ON s.pair_id = p.id
     LEFT JOIN run r ON r.spec_id = s.id
GROUP BY t.name, p.id, p.name;

CREATE VIEW v_lineage AS
SELECT p.name AS pair, j.run_id AS run, j.id AS job, j.kind_name AS kind, j.label AS label,
       a.name AS output, a.sha AS sha, a.bytes AS bytes, j.equal_id AS equal_job,
       d.name AS input, d.needs_id AS from_job, d.output AS from_output, i.sha AS from_sha
FROM job j JOIN run r ON r.id = j.run_id JOIN spec s ON s.id = r.spec_id
     JOIN pair p ON p.id = s.pair_id JOIN artefact a ON a.job_id = j.id
     LEFT JOIN dep d ON d.job_id = j.id
     LEFT JOIN artefact i ON i.job_id = d.needs_id AND i.name = d.output;
