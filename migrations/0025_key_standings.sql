-- As find_key_standings_v1, and what a key may be used for as well: a call ends when its key loses the scope or the route
-- that it was let in by.
CREATE FUNCTION find_key_standings_v2(p_key_ids bigint[]) RETURNS TABLE (
    api_key_id bigint, kind text, revoked boolean, expired boolean, owner_active boolean, expires_in_ms bigint,
    project_ids bigint[], scopes text[], allowed_routes text[]
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT k.id, k.kind, k.revoked_at IS NOT NULL, coalesce(k.expires_at <= clock_timestamp(), false),
           k.owner_user_id IS NULL OR coalesce(u.active, false),
           ceil(extract(epoch FROM k.expires_at - clock_timestamp()) * 1000)::bigint,
           CASE WHEN k.kind = 'project' THEN ARRAY[k.project_id]
                ELSE ARRAY(SELECT g.project_id FROM api_key_projects g WHERE g.api_key_id = k.id) END,
           k.scopes, k.allowed_routes
      FROM api_keys k LEFT JOIN users u ON u.id = k.owner_user_id
     WHERE k.id = ANY (p_key_ids)
$$;
