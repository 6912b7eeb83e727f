-- 0002: suites are equal when their content is, not their name; a row for each artefact.

DROP VIEW v_regressions;
DROP VIEW v_quality;

CREATE VIEW v_quality AS
SELECT p.name AS pair, j.run_id AS run, j.id AS job, x.suite AS suite, x.arm AS arm,
       x.metric AS metric, COUNT(*) AS items, AVG(x.value) AS mean,
       r.created_at AS run_created_at, {text j.params suite} AS suite_sha
FROM job j JOIN run r ON r.id = j.run_id JOIN spec s ON s.id = r.spec_id
     JOIN pair p ON p.id = s.pair_id JOIN sample x ON x.job_id = COALESCE(j.equal_id, j.id)
WHERE j.state IN ('succeeded', 'skipped')
GROUP BY p.name, j.run_id, j.id, x.suite, x.arm, x.metric, r.created_at, j.params;

CREATE VIEW v_regressions AS
SELECT q.pair AS pair, q.run AS run, 'quality' AS what, q.suite AS name, q.arm AS arm,
       q.metric AS metric, q.mean AS value,
       LAG(q.mean) OVER (PARTITION BY q.pair, q.suite, q.suite_sha, q.arm, q.metric
                         ORDER BY q.run, q.job) AS previous,
       q.mean - LAG(q.mean) OVER (PARTITION BY q.pair, q.suite, q.suite_sha, q.arm, q.metric
                                  ORDER BY q.run, q.job) AS change
FROM v_quality q
UNION ALL
SELECT t.pair, t.run, 'ttft', t.stage, t.arm, CAST(t.tokens AS TEXT), t.median_s,
       LAG(t.median_s) OVER (PARTITION BY t.pair, t.stage, t.arm, t.tokens
                             ORDER BY t.run, t.job),
       t.median_s - LAG(t.median_s) OVER (PARTITION BY t.pair, t.stage, t.arm, t.tokens
                                          ORDER BY t.run, t.job)
FROM v_ttft t;

CREATE VIEW v_artefacts AS
SELECT p.name AS pair, j.run_id AS run, j.id AS job, j.kind_name AS kind, j.label AS label,
       a.name AS output, a.sha AS sha, a.bytes AS bytes, j.equal_id AS equal_job
FROM artefact a JOIN job j ON j.id = a.job_id JOIN run r ON r.id = j.run_id
     JOIN spec s ON s.id = r.spec_id JOIN pair p ON p.id = s.pair_id;
